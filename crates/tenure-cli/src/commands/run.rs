//! `tenure run`: holds a key while a command runs.

use std::io::ErrorKind;
use std::process::Command;

use tenure::{Holder, Tenure};

use crate::args::Run;
use crate::exit::{self, Failure};
use crate::{keys, output, sys};

pub(crate) fn run(args: &Run, quiet: bool) -> Result<i32, Failure> {
    let key = match keys::named(&args.key)? {
        Some(key) => key,
        None => keys::from_command(&args.command)?,
    };
    if args.wait == Some(None)
        && args
            .key
            .name
            .as_ref()
            .is_some_and(|name| name.parse::<f64>().is_ok())
    {
        let name = key.to_string();
        return Err(Failure::new(
            exit::USAGE,
            format!("`--wait {name}` is ambiguous: {name} can be a name or a number of seconds"),
        )
        .hint(format!(
            "to wait for that many seconds, write an equals sign: `--wait={name}`"
        )));
    }
    let stop = keys::command_line("stop", &key, &args.key);
    let claim = keys::store()
        .claim(&key)
        .program("tenure")
        .verb("run")
        .stop_command(stop.clone());
    let on_wait = |holder: &Holder| {
        if !quiet {
            output::message(&format!(
                "waiting for {key}, held by {holder} (press Ctrl-C to cancel)"
            ));
        }
    };
    let acquired = match args.wait {
        None => claim.try_acquire(),
        Some(None) => claim.acquire(on_wait),
        Some(Some(limit)) => claim.acquire_within(limit, on_wait),
    };
    let tenure = match acquired {
        Ok(tenure) => tenure,
        Err(error) if error.is_held() && quiet => return Ok(args.conflict_exit_code.into()),
        Err(error) if error.is_held() => {
            let code = args.conflict_exit_code.into();
            // A stop command is shown only for owners of this user: the text of another user's lock
            // record is not trusted.
            let holder = error.holder().filter(|holder| holder.is_own_user());
            let stop = holder.map(|holder| {
                let recorded = holder.record().and_then(tenure::Record::stop_command);
                format!("stop the owner with `{}`", recorded.unwrap_or(&stop))
            });
            let wait = args
                .wait
                .is_none()
                .then(|| "wait for the key with `--wait`".to_owned());
            let hint: Vec<String> = stop.into_iter().chain(wait).collect();
            let failure = Failure::new(code, error.to_string());
            return Err(if hint.is_empty() {
                failure
            } else {
                failure.hint(hint.join(", or "))
            });
        }
        Err(error) => return Err(error.into()),
    };
    run_command(tenure, args)
}

fn run_command(mut tenure: Tenure, args: &Run) -> Result<i32, Failure> {
    let Some((program, arguments)) = args.command.split_first() else {
        return Err(Failure::new(exit::USAGE, "no command given"));
    };
    let relay = sys::Relay::install();
    let mut command = Command::new(program);
    command
        .args(arguments)
        .env("TENURE_TOKEN", tenure.token().to_string());
    relay.prepare(&mut command);
    let spawned = tenure.spawn(&mut command);
    let mut running = spawned.map_err(|error| {
        let code = if error.kind() == ErrorKind::NotFound {
            exit::NOT_FOUND
        } else {
            exit::CANNOT_START
        };
        let why = match error.kind() {
            ErrorKind::NotFound => {
                "the program, or the interpreter in its first line, was not found".to_owned()
            }
            ErrorKind::PermissionDenied => "no permission to execute the program".to_owned(),
            _ => error.to_string(),
        };
        Failure::new(code, format!("cannot run {}: {why}", program.display()))
    })?;
    let ended = relay.wait(&mut running.child);
    running.finish();
    if let Err(error) = tenure.release() {
        output::message(&error.to_string());
    }
    ended.map_err(|error| {
        Failure::new(
            exit::FAILED,
            format!("cannot wait for the command: {error}"),
        )
    })
}
