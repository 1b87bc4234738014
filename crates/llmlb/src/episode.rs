//! A problem that occurs again and again: logged when it begins, at growing intervals while it
//! lasts, and when it has ended, instead of each time.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// The first reminder follows after this time, each further one after twice the time.
const FIRST_REMINDER: Duration = Duration::from_secs(10);
const LONGEST_INTERVAL: Duration = Duration::from_secs(600);
/// The episode has ended when the problem has not occurred for this long.
const QUIET: Duration = Duration::from_secs(10);

/// All occurrences of one kind of problem.
#[derive(Debug, Default)]
pub(crate) struct Episode {
    /// True while `current` is set, so that the common case takes no lock.
    is_on: AtomicBool,
    /// Occurrences since the start.
    total: AtomicU64,
    current: Mutex<Option<Current>>,
}

#[derive(Debug)]
struct Current {
    began: Instant,
    last: Instant,
    count: u64,
    next_reminder: Instant,
    interval: Duration,
}

/// What is worth a line in the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Event {
    Began,
    Continues { count: u64, since: Duration },
    Ended { count: u64, lasted: Duration },
}

impl Episode {
    /// Occurrences since the start.
    pub(crate) fn total(&self) -> u64 {
        self.total.load(Ordering::Relaxed)
    }

    /// Counts one occurrence.
    pub(crate) fn occurred(&self, now: Instant) -> Option<Event> {
        self.total.fetch_add(1, Ordering::Relaxed);
        let mut current = self.lock();
        let Some(episode) = &mut *current else {
            *current = Some(Current {
                began: now,
                last: now,
                count: 1,
                next_reminder: now + FIRST_REMINDER,
                interval: FIRST_REMINDER,
            });
            self.is_on.store(true, Ordering::Relaxed);
            return Some(Event::Began);
        };
        episode.count += 1;
        episode.last = now;
        if now < episode.next_reminder {
            return None;
        }
        episode.interval = (episode.interval * 2).min(LONGEST_INTERVAL);
        episode.next_reminder = now + episode.interval;
        Some(Event::Continues {
            count: episode.count,
            since: now.saturating_duration_since(episode.began),
        })
    }

    /// True while the problem lasts.
    pub(crate) fn is_on(&self) -> bool {
        self.is_on.load(Ordering::Relaxed)
    }

    /// Ends the episode: the problem is known to be over.
    pub(crate) fn end(&self, now: Instant) -> Option<Event> {
        if !self.is_on() {
            return None;
        }
        let episode = self.lock().take()?;
        self.is_on.store(false, Ordering::Relaxed);
        Some(Event::Ended {
            count: episode.count,
            lasted: now.saturating_duration_since(episode.began),
        })
    }

    /// Ends the episode if the problem has not occurred for a while. To be called from time to time.
    pub(crate) fn check_end(&self, now: Instant) -> Option<Event> {
        if !self.is_on() {
            return None;
        }
        let mut current = self.lock();
        let is_over = |episode: &mut Current| now.saturating_duration_since(episode.last) >= QUIET;
        let episode = current.take_if(is_over)?;
        self.is_on.store(false, Ordering::Relaxed);
        Some(Event::Ended {
            count: episode.count,
            lasted: episode.last.saturating_duration_since(episode.began),
        })
    }

    fn lock(&self) -> MutexGuard<'_, Option<Current>> {
        self.current.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_problem_that_lasts_is_reported_at_growing_intervals() {
        let episode = Episode::default();
        let start = Instant::now();
        let mut reported = Vec::new();
        for second in 0..100 {
            let now = start + Duration::from_secs(second);
            reported.extend(episode.occurred(now).map(|event| (second, event)));
            assert_eq!(episode.check_end(now), None);
        }
        let continues = |count, since| Event::Continues {
            count,
            since: Duration::from_secs(since),
        };
        let expected = [
            (0, Event::Began),
            (10, continues(11, 10)),
            (30, continues(31, 30)),
            (70, continues(71, 70)),
        ];
        assert_eq!(reported, expected);
        assert_eq!(episode.total(), 100);
    }

    #[test]
    fn an_episode_ends_once_when_the_problem_stays_away() {
        let episode = Episode::default();
        let start = Instant::now();
        assert_eq!(episode.check_end(start), None);
        let _ = episode.occurred(start);
        let last = start + Duration::from_secs(3);
        let _ = episode.occurred(last);
        assert_eq!(episode.check_end(last + QUIET / 2), None);
        let ended = Event::Ended {
            count: 2,
            lasted: Duration::from_secs(3),
        };
        assert_eq!(episode.check_end(last + QUIET), Some(ended));
        assert_eq!(episode.check_end(last + QUIET * 2), None);
        assert_eq!(episode.occurred(last + QUIET * 3), Some(Event::Began));
        assert_eq!(episode.total(), 3);
    }

    #[test]
    fn an_episode_ends_at_once_when_the_problem_is_known_to_be_over() {
        let episode = Episode::default();
        let start = Instant::now();
        assert_eq!(episode.end(start), None);
        let _ = episode.occurred(start);
        assert!(episode.is_on());
        let ended = Event::Ended {
            count: 1,
            lasted: Duration::from_secs(2),
        };
        assert_eq!(episode.end(start + Duration::from_secs(2)), Some(ended));
        assert!(!episode.is_on());
        assert_eq!(episode.end(start), None);
    }
}
