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
    let store = keys::store();
    let status = store.status(&key)?;
    if let Some(holder) = status
        .holder()
        .filter(|holder| holder.is_suspended() && !quiet)
        && let Some(pid) = holder.pid()
    {
        output::say(&format!(
            "pid {pid} is suspended; it cannot answer before `kill -CONT {pid}`"
        ));
    }
    let stopped = store
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
            let by_force = error.is_timeout() || error.to_string().contains("by force");
            let refused = error.is_stop_refused();
            let failure = Failure::from(error);
            return Err(if by_force && !args.force {
                let again = keys::command_line("stop --force", &key, &args.key);
                failure.hint(format!("`{again}` kills it"))
            } else if refused {
                let path = status.path().display();
                failure.hint(format!("`fuser -v {path}` shows who has its file open"))
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
