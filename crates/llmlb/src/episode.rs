//! Rate limit for log lines about a recurring problem. The problem is logged when it begins, at
//! growing intervals while it lasts, and when it has ended, instead of at each occurrence.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Time from the first log line of a problem to the first reminder. Each further interval is twice
/// the one before it, up to `MAX_INTERVAL`.
const FIRST_REMINDER: Duration = Duration::from_secs(10);
const MAX_INTERVAL: Duration = Duration::from_secs(600);
/// Time without an occurrence after which a problem counts as ended.
const QUIET: Duration = Duration::from_secs(10);

/// Occurrences of one kind of problem, and the state of its log lines. An episode is the time
/// during which the problem recurs.
#[derive(Debug, Default)]
pub(crate) struct Episode {
    /// True while the problem lasts. While false, the frequent checks for the end of the problem
    /// return without taking the lock.
    is_on: AtomicBool,
    total: AtomicU64,
    current: Mutex<Option<OpenEpisode>>,
}

/// State of an episode that has not ended: when it began, and when its next log line is due.
#[derive(Debug)]
struct OpenEpisode {
    began: Instant,
    last: Instant,
    count: u64,
    next_reminder: Instant,
    interval: Duration,
}

/// Begin, continuation or end of a recurring problem, for which the caller writes a log line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Event {
    Began,
    Continues { count: u64, since: Duration },
    Ended { count: u64, lasted: Duration },
}

impl Episode {
    /// Returns the number of occurrences in all episodes since the process started.
    pub(crate) fn total(&self) -> u64 {
        self.total.load(Ordering::Relaxed)
    }

    /// Counts one occurrence of the problem. Returns an event if the occurrence must be logged.
    pub(crate) fn occurred(&self, now: Instant) -> Option<Event> {
        self.total.fetch_add(1, Ordering::Relaxed);
        let mut current = self.lock();
        let Some(episode) = &mut *current else {
            *current = Some(OpenEpisode {
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
        episode.interval = (episode.interval * 2).min(MAX_INTERVAL);
        episode.next_reminder = now + episode.interval;
        Some(Event::Continues {
            count: episode.count,
            since: now.saturating_duration_since(episode.began),
        })
    }

    pub(crate) fn is_on(&self) -> bool {
        self.is_on.load(Ordering::Relaxed)
    }

    /// Ends the episode at once, because the caller knows that the problem is over. Returns the
    /// event to log, if there is one.
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

    /// Ends the episode if the problem has not occurred for `QUIET`. It must be called
    /// periodically, because no occurrence marks the end of a problem.
    pub(crate) fn check_end(&self, now: Instant) -> Option<Event> {
        if !self.is_on() {
            return None;
        }
        let mut current = self.lock();
        let is_over =
            |episode: &mut OpenEpisode| now.saturating_duration_since(episode.last) >= QUIET;
        let episode = current.take_if(is_over)?;
        self.is_on.store(false, Ordering::Relaxed);
        Some(Event::Ended {
            count: episode.count,
            lasted: episode.last.saturating_duration_since(episode.began),
        })
    }

    fn lock(&self) -> MutexGuard<'_, Option<OpenEpisode>> {
        self.current.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lasting_problem_is_reported_at_growing_intervals() {
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
    fn episode_ends_once_after_a_quiet_period() {
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
    fn end_closes_the_episode_at_once() {
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
