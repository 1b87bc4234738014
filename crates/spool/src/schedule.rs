//! When to run next. Runs never overlap: a time that comes while one is going is skipped.

use std::time::{Duration, Instant};

/// Times at a fixed distance, counted from the first.
///
/// ```
/// use std::time::Duration;
/// use spool::Schedule;
///
/// let mut schedule = Schedule::new(Duration::from_secs(3600));
/// assert_eq!(schedule.tick().wait, Duration::ZERO); // the first run is now
/// let next = schedule.tick();
/// assert!(next.wait > Duration::from_secs(3500));
/// assert_eq!(next.skipped, 0);
/// ```
#[derive(Clone, Debug)]
pub struct Schedule {
    every: Duration,
    next: Option<Instant>,
}

/// The next time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Tick {
    /// How long it is until then.
    pub wait: Duration,
    /// How many times came and went while the last run was going.
    pub skipped: u64,
}

impl Schedule {
    /// At least a millisecond lies between two times.
    pub fn new(every: Duration) -> Self {
        Self {
            every: every.max(Duration::from_millis(1)),
            next: None,
        }
    }

    /// Called when a run has ended: when is the next?
    pub fn tick(&mut self) -> Tick {
        self.tick_at(Instant::now())
    }

    fn tick_at(&mut self, now: Instant) -> Tick {
        let due = self.next.unwrap_or(now);
        let mut tick = Tick {
            wait: due.saturating_duration_since(now),
            skipped: 0,
        };
        let late = now.saturating_duration_since(due);
        let mut next = due;
        if late > Duration::ZERO {
            let missed = late.as_nanos() / self.every.as_nanos() + 1;
            tick.skipped = u64::try_from(missed).unwrap_or(u64::MAX);
            let ahead = self
                .every
                .saturating_mul(u32::try_from(missed).unwrap_or(u32::MAX));
            next = due.checked_add(ahead).unwrap_or(now);
            tick.wait = next.saturating_duration_since(now);
        }
        self.next = next.checked_add(self.every);
        tick
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_that_pass_during_a_run_are_skipped_and_counted() {
        let hour = Duration::from_secs(3600);
        let mut schedule = Schedule::new(hour);
        let start = Instant::now();
        let tick = |wait, skipped| Tick { wait, skipped };
        assert_eq!(schedule.tick_at(start), tick(Duration::ZERO, 0));
        // A run of ten minutes.
        let now = start + hour / 6;
        assert_eq!(schedule.tick_at(now), tick(hour * 5 / 6, 0));
        // A run of two hours and a half, from the first hour on.
        let now = start + hour + hour * 5 / 2;
        assert_eq!(schedule.tick_at(now), tick(hour / 2, 2));
        // In step with the first again.
        assert_eq!(schedule.tick_at(start + hour * 4), tick(hour, 0));
    }
}
