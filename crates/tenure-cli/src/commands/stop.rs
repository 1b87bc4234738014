//! `tenure stop`: end the process that holds a key, and no other.

use tenure::{Stopped, process};

use crate::args::Stop;
use crate::exit::{self, Failure};
use crate::{keys, output};

pub(crate) fn stop(args: &Stop, quiet: bool) -> Result<i32, Failure> {
    let Some(key) = keys::named(&args.key)? else {
        return Err(Failure::new(
            exit::USAGE,
            "say what to stop: NAME, --port N or --file PATH",
        )
        .hint("`tenure status` lists what is held"));
    };
    let stopped = keys::store()
        .stop(&key)
        .timeout(args.timeout)
        .force(args.force)
        .run();
    let text = match stopped {
        Ok(Stopped::Ended { pid, killed: false }) => format!("{key}: stopped pid {pid}"),
        Ok(Stopped::Ended { pid, killed: true }) => {
            format!("{key}: pid {pid} did not stop when asked and was killed")
        }
        Ok(Stopped::Cleaned {
            record: Some(record),
        }) if process::is_running(record.pid()) => format!(
            "{key}: nobody holds it; removed a stale file. The file named pid {0}, but process {0} \
             does not have the lock: the number was given to another process, which was left alone",
            record.pid()
        ),
        Ok(Stopped::LeftAlone { why }) => {
            format!("{key}: nobody holds it; its file is no lock record ({why}) and was left alone")
        }
        Ok(Stopped::Cleaned { .. }) => format!("{key}: nobody holds it; removed a stale file"),
        Ok(_) => format!("{key}: nobody holds it"),
        Err(error) => {
            let again = format!(
                "`tenure stop --force {}` kills it",
                keys::typed(&key, &args.key)
            );
            let by_force =
                !args.force && (error.is_timeout() || error.to_string().contains("by force"));
            let failure = Failure::from(error);
            return Err(if by_force {
                failure.hint(again)
            } else {
                failure
            });
        }
    };
    if !quiet {
        output::data(&text)?;
    }
    Ok(exit::DONE)
}
