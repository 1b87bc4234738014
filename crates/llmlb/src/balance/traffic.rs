//! Sums of what a backend has served, for the snapshot of the server. They only grow, and readers compute
//! averages from the differences of two times.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Counters of one backend since the start of the server. Aligned so that threads which use other
/// backends do not share its cache line.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(crate) struct Traffic {
    prompt: AtomicU64,
    completion: AtomicU64,
    failed: AtomicU64,
    first_bytes: AtomicU64,
    first_byte_us: AtomicU64,
}

/// Values of the counters at one time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct TrafficTotals {
    /// Tokens that models read, and generated, for requests that have ended.
    pub(crate) prompt: u64,
    pub(crate) completion: u64,
    /// Attempts without a usable response, cut responses, and responses with a status of 500 or more.
    pub(crate) failed: u64,
    /// Number of responses that began, and the sum of the times from sending the request until the first
    /// byte of the response's body.
    pub(crate) first_bytes: u64,
    pub(crate) first_byte_us: u64,
}

impl Traffic {
    /// Notes the tokens of a request that has ended.
    pub(crate) fn note_tokens(&self, prompt: u64, completion: u64) {
        self.prompt.fetch_add(prompt, Ordering::Relaxed);
        self.completion.fetch_add(completion, Ordering::Relaxed);
    }

    /// Notes a failed attempt.
    pub(crate) fn note_failed(&self) {
        self.failed.fetch_add(1, Ordering::Relaxed);
    }

    /// Notes the time until the first byte of a response's body.
    pub(crate) fn note_first_byte(&self, after: Duration) {
        let us = u64::try_from(after.as_micros()).unwrap_or(u64::MAX);
        self.first_bytes.fetch_add(1, Ordering::Relaxed);
        self.first_byte_us.fetch_add(us, Ordering::Relaxed);
    }

    pub(crate) fn totals(&self) -> TrafficTotals {
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        TrafficTotals {
            prompt: get(&self.prompt),
            completion: get(&self.completion),
            failed: get(&self.failed),
            first_bytes: get(&self.first_bytes),
            first_byte_us: get(&self.first_byte_us),
        }
    }
}
