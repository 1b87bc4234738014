//! Time limit that a reload of the configuration can change while threads read it.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Duration in microseconds that all threads share without locks.
#[derive(Debug)]
pub(crate) struct AtomicDuration(AtomicU64);

impl AtomicDuration {
    pub(crate) fn new(duration: Duration) -> Self {
        Self(AtomicU64::new(micros(duration)))
    }

    pub(crate) fn get(&self) -> Duration {
        Duration::from_micros(self.0.load(Ordering::Relaxed))
    }

    pub(crate) fn set(&self, duration: Duration) {
        self.0.store(micros(duration), Ordering::Relaxed);
    }
}

fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn last_duration_is_returned() {
        let limit = AtomicDuration::new(Duration::from_millis(1));
        assert_eq!(limit.get(), Duration::from_millis(1));
        limit.set(Duration::from_secs(86_400));
        assert_eq!(limit.get(), Duration::from_secs(86_400));
        limit.set(Duration::MAX);
        assert!(limit.get() > Duration::from_secs(1 << 40));
    }
}
