//! Times of a request's attempts and of its wait in the queue.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::balance::{Backend, ChoiceReason};

/// The attempt at the backend whose response the client gets, or the attempt in progress.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Attempt {
    pub(crate) reason: ChoiceReason,
    /// Number of earlier attempts.
    pub(crate) number: u8,
    pub(crate) started: Instant,
    /// Time of the head of the response.
    pub(crate) head: Option<Instant>,
}

/// An attempt that yielded no usable response.
#[derive(Debug)]
pub(crate) struct FailedAttempt {
    pub(crate) backend: Arc<Backend>,
    /// Status of the response, or the cause.
    pub(crate) why: String,
    pub(crate) times: Attempt,
    pub(crate) ended: Instant,
}

impl FailedAttempt {
    /// Duration of the attempt in milliseconds.
    pub(crate) fn ms(&self) -> u64 {
        let passed = self.ended.saturating_duration_since(self.times.started);
        u64::try_from(passed.as_millis()).unwrap_or(u64::MAX)
    }
}

/// Time that a request has waited for a slot.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct QueueTime {
    /// Time of the waits that have ended; `None` if the request has needed no slot so far.
    passed: Option<Duration>,
    /// Start of a wait that has not ended.
    since: Option<Instant>,
}

impl QueueTime {
    /// Notes that the request needs a slot.
    pub(crate) fn note_needed(&mut self) {
        self.passed.get_or_insert_default();
    }

    /// Notes that the request begins to wait.
    pub(crate) fn start(&mut self) {
        self.since = Some(Instant::now());
    }

    /// Notes the end of a wait.
    pub(crate) fn end(&mut self) {
        if let Some(since) = self.since.take() {
            *self.passed.get_or_insert_default() += since.elapsed();
        }
    }

    /// Returns the time of all waits until `now`; `None` if the request needed no slot.
    pub(crate) fn until(self, now: Instant) -> Option<Duration> {
        let last = self.since.map(|since| now.saturating_duration_since(since));
        Some(self.passed? + last.unwrap_or_default())
    }

    /// Returns the time in the queue of a request that ends at `end`, in milliseconds.
    pub(crate) fn ms(self, end: Instant) -> u64 {
        let passed = self.until(end).unwrap_or_default();
        u64::try_from(passed.as_millis()).unwrap_or(u64::MAX)
    }
}
