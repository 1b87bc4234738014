//! Requests that wait for a slot, as seen by clients that hold one and make no progress.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

/// Shortens the time for which a client may stall while other requests wait for a slot.
#[derive(Clone, Debug)]
pub(crate) struct Contention {
    waiting: Arc<AtomicUsize>,
    /// `server.stall_timeout`
    limit: Duration,
}

impl Contention {
    pub(crate) fn new(waiting: &Arc<AtomicUsize>, limit: Duration) -> Self {
        Self {
            waiting: Arc::clone(waiting),
            limit,
        }
    }

    /// The time for which a client may stall at this moment, given the time for which it may while
    /// no request waits.
    pub(crate) fn limit(&self, usual: Duration) -> Duration {
        match self.waiting.load(Ordering::Relaxed) {
            0 => usual,
            _ => usual.min(self.limit),
        }
    }

    /// The time after which a client that stalls is looked at again.
    pub(crate) fn interval(&self, usual: Duration) -> Duration {
        usual.min(self.limit)
    }
}

#[cfg(test)]
impl Contention {
    /// Contention that never is: no request waits.
    pub(crate) fn none() -> Self {
        Self::new(&Arc::default(), Duration::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waiting_requests_shorten_the_limit() {
        let [short, long] = [1, 60].map(Duration::from_secs);
        let waiting = Arc::new(AtomicUsize::new(0));
        let contention = Contention::new(&waiting, Duration::from_secs(10));
        assert_eq!(contention.limit(long), long);
        waiting.store(1, Ordering::Relaxed);
        assert_eq!(contention.limit(long), Duration::from_secs(10));
        assert_eq!(contention.limit(short), short);
        assert_eq!(contention.interval(short), short);
    }
}
