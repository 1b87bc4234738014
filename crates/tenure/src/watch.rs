//! Notification when the lock file or the lease of a tenure is lost, from a thread that checks it
//! regularly.

use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use crate::error::Error;
use crate::tenure::Tenure;

/// Thread that checks the lock file or the lease of a tenure. Dropping the watch ends the thread.
#[derive(Debug)]
#[must_use = "the lock file is no longer checked once the watch is dropped"]
pub struct Watch {
    stop: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Tenure {
    /// Checks the lock file or the lease at this interval and calls `on_loss` once if it was lost
    /// ([`lost`](Self::lost)).
    ///
    /// Drop the watch before releasing the tenure, because a release removes the file and ends the
    /// lease too.
    ///
    /// ```
    /// use std::time::Duration;
    /// use tenure::{Key, Store};
    ///
    /// let dir = tempfile::tempdir()?;
    /// let tenure = Store::in_dir(dir.path()).claim(&Key::name("job")?).try_acquire()?;
    /// let watch = tenure.watch(Duration::from_secs(5), || eprintln!("the lock file is gone"))?;
    /// // ...
    /// drop(watch);
    /// tenure.release()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn watch(
        &self,
        every: Duration,
        on_loss: impl FnOnce() + Send + 'static,
    ) -> Result<Watch, Error> {
        let failed = |error| Error::io("watch", self.path(), error);
        let check = self.loss_check().map_err(failed)?;
        let (stop, stopped) = mpsc::channel();
        let thread = thread::Builder::new()
            .name("tenure-watch".to_owned())
            .spawn(move || {
                while stopped.recv_timeout(every) == Err(RecvTimeoutError::Timeout) {
                    if check.is_lost() {
                        on_loss();
                        return;
                    }
                }
            })
            .map_err(failed)?;
        Ok(Watch {
            stop: Some(stop),
            thread: Some(thread),
        })
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.stop = None;
        if let Some(thread) = self.thread.take() {
            // A thread that drops the watch in `on_loss` cannot join itself. It ends by itself
            // after `on_loss`.
            if thread.thread().id() != thread::current().id() {
                let _ = thread.join();
            }
        }
    }
}
