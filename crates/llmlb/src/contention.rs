//! Shortens time limits for clients that stall while they hold a backend's slot and other requests
//! wait for one.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use crate::atomic_duration::AtomicDuration;

#[derive(Clone, Debug)]
pub(crate) struct Contention {
    waiting: Arc<AtomicUsize>,
    /// Value of `server.stall_timeout`. A reload of the configuration changes it even for requests
    /// in flight.
    limit: Arc<AtomicDuration>,
}

impl Contention {
    pub(crate) fn new(waiting: &Arc<AtomicUsize>, limit: Duration) -> Self {
        Self {
            waiting: Arc::clone(waiting),
            limit: Arc::new(AtomicDuration::new(limit)),
        }
    }

    /// Returns the time for which a client may stall now: `usual` while no request waits for a slot, at most
    /// `server.stall_timeout` otherwise.
    pub(crate) fn limit(&self, usual: Duration) -> Duration {
        match self.waiting.load(Ordering::Relaxed) {
            0 => usual,
            _ => usual.min(self.limit.get()),
        }
    }

    /// Applies `server.stall_timeout` of a reloaded configuration to all copies of this value.
    pub(crate) fn set_limit(&self, limit: Duration) {
        self.limit.set(limit);
    }

    /// Returns the interval at which a stalled client is checked: the shorter of `usual` and
    /// `server.stall_timeout`, since requests may start to wait for a slot at any time.
    pub(crate) fn interval(&self, usual: Duration) -> Duration {
        usual.min(self.limit.get())
    }
}

#[cfg(test)]
impl Contention {
    /// Returns a contention in which no request ever waits for a slot, so that tests get the usual
    /// time limits.
    pub(crate) fn none() -> Self {
        Self::new(&Arc::default(), Duration::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stall_limit_is_shorter_while_requests_wait() {
        let [short, long] = [1, 60].map(Duration::from_secs);
        let waiting = Arc::new(AtomicUsize::new(0));
        let contention = Contention::new(&waiting, Duration::from_secs(10));
        assert_eq!(contention.limit(long), long);
        waiting.store(1, Ordering::Relaxed);
        assert_eq!(contention.limit(long), Duration::from_secs(10));
        assert_eq!(contention.limit(short), short);
        assert_eq!(contention.interval(short), short);
        contention.clone().set_limit(short);
        assert_eq!(contention.limit(long), short);
    }
}
