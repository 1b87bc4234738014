//! Requests that wait for a place.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::sync::Notify;

/// Why a request that waited was not served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Waited {
    /// Too many wait already.
    Full,
    /// Nothing became free in time.
    TooLong,
    /// Whoever could serve it is down.
    Down,
}

#[derive(Debug)]
pub(super) struct Queue {
    waiting: AtomicUsize,
    most: usize,
    pub(super) patience: Duration,
    pub(super) changed: Notify,
}

impl Queue {
    pub(super) fn new(most: usize, patience: Duration) -> Self {
        Self {
            waiting: AtomicUsize::new(0),
            most,
            patience,
            changed: Notify::new(),
        }
    }

    pub(super) fn join(&self) -> Result<Waiting<'_>, Waited> {
        let joined = self
            .waiting
            .fetch_update(Ordering::SeqCst, Ordering::SeqCst, |now| {
                (now < self.most).then_some(now + 1)
            });
        joined.map(|_| Waiting(self)).map_err(|_| Waited::Full)
    }

    /// Something became free, or came up.
    pub(super) fn freed(&self) {
        if self.waiting.load(Ordering::SeqCst) > 0 {
            self.changed.notify_waiters();
        }
    }
}

/// Somebody who waits.
pub(super) struct Waiting<'a>(&'a Queue);

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.waiting.fetch_sub(1, Ordering::SeqCst);
    }
}
