//! Cancellation of long operations.

use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

/// Cancellation token. A long operation ends at its next safe point after `cancel` is called. All
/// clones share one state.
///
/// ```
/// use std::time::Duration;
/// use spool::Cancel;
///
/// let cancel = Cancel::new();
/// assert!(!cancel.wait(Duration::from_millis(1))); // not cancelled
/// cancel.clone().cancel();
/// assert!(cancel.wait(Duration::from_secs(3600))); // returns at once
/// ```
#[derive(Clone, Debug, Default)]
pub struct Cancel {
    inner: Arc<(Mutex<bool>, Condvar)>,
}

impl Cancel {
    /// Returns a token that is not cancelled.
    pub fn new() -> Self {
        Self::default()
    }

    /// Cancels the operation.
    pub fn cancel(&self) {
        *self.inner.0.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.inner.1.notify_all();
    }

    /// True if `cancel` was called.
    pub fn is_cancelled(&self) -> bool {
        *self.inner.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for the duration or until `cancel` is called. Returns true if it was called.
    pub fn wait(&self, duration: Duration) -> bool {
        let cancelled = self.inner.0.lock().unwrap_or_else(PoisonError::into_inner);
        let waited = self
            .inner
            .1
            .wait_timeout_while(cancelled, duration, |cancelled| !*cancelled);
        *waited.unwrap_or_else(PoisonError::into_inner).0
    }
}
