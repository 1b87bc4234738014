//! Work that a signal ends early: the first one asks it to end, the second one does not wait.

use std::thread;

use spool::Cancel;
use tokio::sync::oneshot;

use super::exit::{self, Failure};
use crate::sys::signals::Signals;

/// Runs work on a thread of its own and asks it to end when a signal comes. `None`: it was not
/// waited for, and ends with the process.
pub(super) fn interruptible<T: Send + 'static>(
    work: impl FnOnce(Cancel) -> T + Send + 'static,
) -> Result<Option<T>, Failure> {
    let failed = |error| Failure::new(exit::FAILED, format!("cannot handle signals: {error}"));
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(failed)?;
    runtime.block_on(async {
        // Before the work begins, so that no signal cuts it.
        let mut signals = Signals::install().map_err(failed)?;
        let cancel = Cancel::new();
        let (sender, mut done) = oneshot::channel();
        let asked = cancel.clone();
        thread::Builder::new()
            .name("usage".to_owned())
            .spawn(move || sender.send(work(asked)))
            .map_err(|error| Failure::new(exit::FAILED, format!("cannot start: {error}")))?;
        tokio::select! {
            done = &mut done => return ended(done),
            signal = signals.next() => {
                tracing::info!("{signal}: ending; what was begun is finished first");
                cancel.cancel();
            }
        }
        tokio::select! {
            done = &mut done => ended(done),
            signal = signals.next() => {
                tracing::info!("{signal}: ending at once");
                Ok(None)
            }
        }
    })
}

fn ended<T>(done: Result<T, oneshot::error::RecvError>) -> Result<Option<T>, Failure> {
    done.map(Some)
        .map_err(|_| Failure::new(exit::FAILED, "it ended without a result; this is a bug"))
}
