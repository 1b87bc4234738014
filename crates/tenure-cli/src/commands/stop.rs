//! `tenure stop`: stops the process that holds a key, and no other.

use tenure::{Stopped, process};

use crate::args::Stop;
use crate::exit::{self, Failure};
use crate::keys::Place;
use crate::{keys, output};

pub(crate) fn stop(args: &Stop, quiet: bool) -> Result<i32, Failure> {
    let Some(key) = keys::named(&args.key)? else {
        return Err(
            Failure::new(exit::USAGE, "no key given: NAME, --port N or --file PATH")
                .hint("list the held keys: `tenure status`"),
        );
    };
    let place = Place::open(args.store.as_ref(), args.key.file.is_some())?;
    let store = &place.store;
    if args.force && store.is_lease() {
        return Err(Failure::new(
            exit::USAGE,
            "--force kills a process of this machine, but the owner of a lease may be on another one",
        )
        .hint("stop it with a request, without `--force`, or kill it on the host that `tenure status` shows"));
    }
    let status = store.status(&key)?;
    if let Some(holder) = status
        .holder()
        .filter(|holder| holder.is_suspended() && !quiet)
        && let Some(pid) = holder.pid()
    {
        output::message(&format!(
            "pid {pid} is suspended and cannot respond until it is resumed: `kill -CONT {pid}`"
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
            format!("{key}: pid {pid} did not exit when asked and was killed")
        }
        Ok(Stopped::Released { holder }) => match holder.record() {
            Some(record) => {
                let host = record.host().unwrap_or("an unknown host");
                format!("{key}: stopped pid {} on {host}", record.pid())
            }
            None => format!("{key}: its owner has released it"),
        },
        Ok(Stopped::Cleaned {
            record: Some(record),
        }) if process::is_running(record.pid()) => format!(
            "{key}: not held; removed a stale lock file. The file named pid {0}, but process {0} \
             does not have the lock and was not signalled",
            record.pid()
        ),
        Ok(Stopped::LeftAlone { why }) => {
            format!("{key}: not held; its file is not a lock record ({why}) and was kept")
        }
        Ok(Stopped::Cleaned { .. }) => format!("{key}: not held; removed a stale lock file"),
        Ok(_) => format!("{key}: not held"),
        Err(error) => {
            let is_force_required = error.is_force_required();
            let is_refused = error.is_stop_refused();
            let is_timeout = error.is_timeout();
            let failure = Failure::from(error);
            return Err(if is_force_required && !args.force {
                let again = keys::command_line("stop --force", &key, &args.key, &place);
                failure.hint(format!("kill it with `{again}`"))
            } else if store.is_lease() && is_timeout {
                failure.hint(
                    "the owner reads the request when it renews its lease, within a third of its \
                     TTL: wait longer with `--timeout SECS`",
                )
            } else if store.is_lease() {
                failure
            } else if is_refused {
                let path = status.path().display();
                failure.hint(format!(
                    "list the processes that have the lock file open: `fuser -v {path}`"
                ))
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
