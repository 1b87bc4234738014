//! Times of periodic runs. Runs never overlap: a time that passes during a run is skipped.

use std::time::{Duration, Instant};

/// Run times at a fixed interval, counted from the first run.
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

/// Next run of a [`Schedule`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Tick {
    /// Time until the next run.
    pub wait: Duration,
    /// Number of run times that passed during the last run.
    pub skipped: u64,
}

impl Schedule {
    /// Creates a schedule with this interval. Intervals below one millisecond are raised to it.
    pub fn new(every: Duration) -> Self {
        Self {
            every: every.max(Duration::from_millis(1)),
            next: None,
        }
    }

    /// Returns the next run. Call this when a run has ended.
    pub fn tick(&mut self) -> Tick {
        self.tick_at(Instant::now())
    }

    fn tick_at(&mut self, now: Instant) -> Tick {
        let due = self.next.unwrap_or(now);
        let mut tick = Tick {
            wait: due.saturating_duration_since(now),
            skipped: 0,
        };
        let delay = now.saturating_duration_since(due);
        let mut next = due;
        if delay > Duration::ZERO {
            let missed = delay.as_nanos() / self.every.as_nanos() + 1;
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
        // A run of ten minutes in a schedule of one hour leaves a wait of 50 minutes.
        let now = start + hour / 6;
        assert_eq!(schedule.tick_at(now), tick(hour * 5 / 6, 0));
        // The schedule has one run per hour. A run that takes two and a half hours passes two run
        // times, which are skipped.
        let now = start + hour + hour * 5 / 2;
        assert_eq!(schedule.tick_at(now), tick(hour / 2, 2));
        // Later run times are still whole intervals after the first run, although two were skipped.
        assert_eq!(schedule.tick_at(start + hour * 4), tick(hour, 0));
    }
}
