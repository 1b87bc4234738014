//! A way to end long work early.

use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

/// Asks long work to end at the next point at which it can. Clones ask the same work.
///
/// ```
/// use std::time::Duration;
/// use spool::Cancel;
///
/// let cancel = Cancel::new();
/// assert!(!cancel.wait(Duration::from_millis(1))); // nobody asked
/// cancel.clone().cancel();
/// assert!(cancel.wait(Duration::from_secs(3600))); // returns at once
/// ```
#[derive(Clone, Debug, Default)]
pub struct Cancel {
    inner: Arc<(Mutex<bool>, Condvar)>,
}

impl Cancel {
    /// Nobody has asked yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Asks.
    pub fn cancel(&self) {
        *self.inner.0.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.inner.1.notify_all();
    }

    /// Somebody has asked.
    pub fn is_cancelled(&self) -> bool {
        *self.inner.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits so long, or until somebody asks. `true`: somebody has.
    pub fn wait(&self, long: Duration) -> bool {
        let asked = self.inner.0.lock().unwrap_or_else(PoisonError::into_inner);
        let waited = self
            .inner
            .1
            .wait_timeout_while(asked, long, |asked| !*asked);
        *waited.unwrap_or_else(PoisonError::into_inner).0
    }
}
