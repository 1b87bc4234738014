//! Being told when the lock file is lost, without asking again and again.

use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use crate::error::Error;
use crate::guard::Tenure;

/// Looks after a tenure's lock file in a thread of its own. Dropping it ends the thread.
#[derive(Debug)]
#[must_use = "the watch ends when it is dropped"]
pub struct Watch {
    stop: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Tenure {
    /// Calls `on_loss` once if the lock file is deleted, renamed or replaced; looks that often.
    ///
    /// Drop the watch before the tenure is released: a release removes the file too.
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
        let place = self.place().map_err(failed)?;
        let (stop, stopped) = mpsc::channel();
        let thread = thread::Builder::new()
            .name("tenure-watch".to_owned())
            .spawn(move || {
                while stopped.recv_timeout(every) == Err(RecvTimeoutError::Timeout) {
                    if place.is_lost() {
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
            // Dropped by `on_loss` itself: it ends by itself then.
            if thread.thread().id() != thread::current().id() {
                let _ = thread.join();
            }
        }
    }
}
