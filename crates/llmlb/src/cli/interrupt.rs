//! Runner of work that a signal interrupts: the first signal cancels the work, the second exits
//! without waiting for it.

use std::thread;

use spool::Cancel;
use tokio::sync::oneshot;

use super::exit::{self, Failure};
use crate::sys::signals::Signals;

/// Runs work on its own thread and cancels it on a signal. `None` after a second signal: the
/// unfinished work ends with the process.
pub(super) fn interruptible<T: Send + 'static>(
    work: impl FnOnce(Cancel) -> T + Send + 'static,
) -> Result<Option<T>, Failure> {
    let failed = |error| Failure::new(exit::FAILED, format!("cannot handle signals: {error}"));
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(failed)?;
    runtime.block_on(async {
        // Install the signal handlers before the work starts: otherwise a signal would kill the
        // process in the middle of the work.
        let mut signals = Signals::install().map_err(failed)?;
        let cancel = Cancel::new();
        let (sender, mut done) = oneshot::channel();
        let work_cancel = cancel.clone();
        thread::Builder::new()
            .name("usage".to_owned())
            .spawn(move || sender.send(work(work_cancel)))
            .map_err(|error| {
                Failure::new(exit::FAILED, format!("cannot start a thread: {error}"))
            })?;
        tokio::select! {
            done = &mut done => return ended(done),
            signal = signals.next_stop() => {
                tracing::info!("{signal} received: exiting after the attempt in progress");
                cancel.cancel();
            }
        }
        tokio::select! {
            done = &mut done => ended(done),
            signal = signals.next_stop() => {
                tracing::info!("second signal received ({signal}): exiting at once");
                Ok(None)
            }
        }
    })
}

fn ended<T>(done: Result<T, oneshot::error::RecvError>) -> Result<Option<T>, Failure> {
    done.map(Some)
        .map_err(|_| Failure::new(exit::FAILED, "the worker thread panicked; this is a bug"))
}
