//! The monotonic clock of the balancer, in milliseconds since its first use.

use std::sync::LazyLock;

use tokio::time::{Duration, Instant};

static START: LazyLock<Instant> = LazyLock::new(|| {
    // Read the real clock. A test that has paused tokio's clock may have advanced it, and all tests
    // of the process share this start: for other tests the start would lie in the future.
    Instant::from_std(std::time::Instant::now())
});

/// A point in time, in milliseconds since the first use of this clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Moment(pub(super) u64);

impl Moment {
    pub(super) fn now() -> Self {
        let since = START.elapsed().as_millis();
        Self(u64::try_from(since).unwrap_or(u64::MAX))
    }

    /// Returns a time that was read from the system's clock.
    pub(super) fn at(time: std::time::Instant) -> Self {
        let since = time.saturating_duration_since(START.into_std()).as_millis();
        Self(u64::try_from(since).unwrap_or(u64::MAX))
    }

    pub(super) fn plus(self, pause: Duration) -> Self {
        let pause = u64::try_from(pause.as_millis()).unwrap_or(u64::MAX);
        Self(self.0.saturating_add(pause))
    }

    /// Returns the seconds since an earlier moment, for messages.
    pub(super) fn seconds_after(self, earlier: Self) -> f32 {
        Duration::from_millis(self.0.saturating_sub(earlier.0)).as_secs_f32()
    }

    /// Returns the moment as a tokio [`Instant`], the type that tokio's timers need.
    pub(super) fn instant(self) -> Instant {
        *START + Duration::from_millis(self.0)
    }
}
