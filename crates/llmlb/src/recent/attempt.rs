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
    /// Time of the waits that have ended.
    passed: Duration,
    /// Start of a wait that has not ended.
    since: Option<Instant>,
}

impl QueueTime {
    pub(crate) fn start(&mut self) {
        self.since = Some(Instant::now());
    }

    pub(crate) fn end(&mut self) {
        if let Some(since) = self.since.take() {
            self.passed += since.elapsed();
        }
    }

    /// Returns the time in the queue of a request that ends at `end`, in milliseconds.
    pub(crate) fn ms(self, end: Instant) -> u64 {
        let last = self.since.map(|since| end.saturating_duration_since(since));
        let passed = self.passed + last.unwrap_or_default();
        u64::try_from(passed.as_millis()).unwrap_or(u64::MAX)
    }
}
