//! `tenure run`: holds a key while a command runs.

use std::ffi::OsStr;
use std::io::{self, ErrorKind};
use std::process::Command;
use std::time::Duration;

use tenure::{Holder, Key, Proof, Tenure};

use crate::args::Run;
use crate::exit::{self, Failure};
use crate::keys::Place;
use crate::sys::{Ending, LeasedCommand, StartError};
use crate::{keys, log, output, sys};

/// Default of `--ttl`: time after which a lease ends unless it is renewed.
const DEFAULT_TTL: Duration = Duration::from_secs(15);
/// Maximum time between SIGTERM to the command and the end of its lease. The command gets this time
/// to exit by itself.
const MAX_NOTICE: Duration = Duration::from_secs(5);
/// Minimum and maximum of the time that the watchdog has to end the command after the loss of its
/// lease. The time is a twentieth of the TTL: half of the margin between that loss and the time at
/// which the store grants the lease to another owner.
const MIN_PATIENCE: Duration = Duration::from_millis(50);
const MAX_PATIENCE: Duration = Duration::from_secs(1);

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
    let place = Place::open(args.store.as_ref(), args.key.file.is_some())?;
    if args.ttl.is_some() && !place.store.is_lease() {
        return Err(Failure::new(
            exit::USAGE,
            "--ttl applies only to leases: a lock file is held for as long as its owner runs",
        )
        .hint("name the store of leases with `--store URL` or TENURE_STORE"));
    }
    // Log events are printed in the background until this function returns, so that they appear in
    // front of the message of a failure.
    let _printing = if place.store.is_lease() {
        let printing = log::print_in_background().map_err(|error| {
            Failure::new(
                exit::FAILED,
                format!("cannot start the thread that prints: {error}"),
            )
        })?;
        Some(printing)
    } else {
        None
    };
    let ttl = args.ttl.unwrap_or(DEFAULT_TTL);
    let stop = keys::command_line("stop", &key, &args.key, &place);
    let claim = place
        .store
        .claim(&key)
        .program("tenure")
        .verb("run")
        .stop_command(stop.clone())
        .ttl(ttl);
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
        Err(error) if error.is_held() => return Err(held(&error, args, &stop, &place)),
        Err(error) => return Err(error.into()),
    };
    if place.store.is_lease() {
        run_on_lease(tenure, ttl, &key, args, &place)
    } else {
        run_command(tenure, args)
    }
}

fn held(error: &tenure::Error, args: &Run, stop: &str, place: &Place) -> Failure {
    // A stop command from a lock record is shown only for owners of this user: the text of another
    // user's record is not trusted. For a lease, the stop command with this user's own arguments is
    // shown.
    let stop = match error.holder() {
        Some(holder) if holder.proof() == Proof::Lease => Some(stop),
        Some(holder) if holder.is_own_user() => {
            let recorded = holder.record().and_then(tenure::Record::stop_command);
            Some(recorded.unwrap_or(stop))
        }
        _ => None,
    };
    let stop = stop.map(|stop| format!("stop the owner with `{stop}`{}", place.requirement()));
    let wait = args
        .wait
        .is_none()
        .then(|| "wait for the key with `--wait`".to_owned());
    let hint: Vec<String> = stop.into_iter().chain(wait).collect();
    let failure = Failure::new(args.conflict_exit_code.into(), error.to_string());
    if hint.is_empty() {
        failure
    } else {
        failure.hint(hint.join(", or "))
    }
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
    let mut running = spawned.map_err(|error| not_started(program, &error))?;
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

/// Runs the command while the lease is valid. The command and its descendants have ended before the
/// lease is released or passes to another owner.
fn run_on_lease(
    mut tenure: Tenure,
    ttl: Duration,
    key: &Key,
    args: &Run,
    place: &Place,
) -> Result<i32, Failure> {
    let store = place.store.dir().display().to_string();
    // Signal handlers are installed first: a signal that ends this process would leave the lease
    // held until its TTL is over.
    let relay = sys::Relay::install();
    // The lock record announces that this owner reads stop requests: `tenure stop` on another
    // machine stores a request only for such owners.
    tenure.stop_request()?;
    let leased = LeasedCommand {
        words: &args.command,
        token: tenure.token(),
        notice: (ttl / 6).min(MAX_NOTICE),
        patience: (ttl / 20).clamp(MIN_PATIENCE, MAX_PATIENCE),
    };
    let ended = sys::supervise(&mut tenure, &relay, &leased);
    // If the lease could not be renewed, its release fails too. Only the failed renewal is
    // reported, because the release failed for the same reason.
    if let Err(error) = tenure.release()
        && !matches!(ended, Ok(Ending::LeaseLost))
    {
        output::message(&error.to_string());
    }
    match ended {
        Ok(Ending::Exited(code)) => Ok(code),
        Ok(Ending::LeaseLost) => Err(lost(
            format!(
                "the lease of {key} was lost or could not be renewed in time; the command and all \
                 its descendants were ended"
            ),
            &store,
        )),
        Ok(Ending::WatchdogEnded) => Err(Failure::new(
            exit::FAILED,
            format!(
                "the watchdog of the command for {key} was killed; the command and all its \
                 descendants were ended"
            ),
        )
        .hint("check the system log for the cause, such as a lack of memory: `dmesg`")),
        Err(StartError::Command(error)) => {
            let program = args.command.first();
            Err(not_started(program.map_or(OsStr::new(""), |p| p), &error))
        }
        Err(StartError::Watchdog(error)) => Err(Failure::new(
            exit::FAILED,
            format!("cannot start the watchdog of the command for {key}: {error}"),
        )),
        Err(StartError::LeaseLost) => Err(lost(
            format!("the lease of {key} was lost before the command was started"),
            &store,
        )),
    }
}

fn lost(message: String, store: &str) -> Failure {
    Failure::new(exit::FAILED, message).hint(format!(
        "check that {store} is reachable from this host and keeps its data, and that this process \
         was not suspended; `--ttl` with a larger number tolerates longer interruptions"
    ))
}

fn not_started(program: &OsStr, error: &io::Error) -> Failure {
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
}
