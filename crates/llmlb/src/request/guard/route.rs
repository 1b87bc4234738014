//! Model of a request and the backends that it was sent to, for the access log and the usage
//! record.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::balance::Backend;
use crate::meter::record::Attempt;
use crate::upstream::AddressShare;

#[derive(Debug, Default)]
pub(crate) struct RequestRoute {
    pub(crate) model: Option<String>,
    /// Name by which the backend knows the model, if it differs from the client's name.
    pub(crate) served_model: Option<String>,
    /// Some backend lists the model, or it is an alias.
    pub(super) is_known_model: bool,
    pub(crate) queue: QueueTime,
    pub(crate) backend: Option<Arc<Backend>>,
    /// True if a backend received the request and may be working on it, so that the tokens of the
    /// prompt count.
    is_delivered: bool,
    pub(crate) failed: Vec<FailedAttempt>,
    /// Share of the client's address in the connections to backends. Dropping it frees the share.
    pub(super) address_share: Option<AddressShare>,
}

/// Time that a request waited for a slot.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct QueueTime {
    /// Time of past waits; `None` if the request needed no slot so far.
    waited: Option<Duration>,
    /// Start of the wait in progress.
    since: Option<Instant>,
}

impl QueueTime {
    /// Notes that the request needs a slot.
    pub(crate) fn note_needed(&mut self) {
        self.waited.get_or_insert_default();
    }

    /// Notes that the request begins to wait.
    pub(crate) fn begin(&mut self) {
        self.note_needed();
        self.since = Some(Instant::now());
    }

    /// Notes the end of the wait.
    pub(crate) fn end(&mut self) {
        self.waited = self.until(Instant::now());
        self.since = None;
    }

    /// Returns the time of all waits until `now`; `None` if the request needed no slot.
    pub(crate) fn until(&self, now: Instant) -> Option<Duration> {
        let current = self.since.map(|since| now.saturating_duration_since(since));
        Some(self.waited? + current.unwrap_or_default())
    }
}

#[derive(Debug)]
pub(crate) struct FailedAttempt {
    pub(crate) backend: Arc<Backend>,
    pub(crate) why: String,
}

/// State of a backend after a failed attempt: if it may still be working on the request, the tokens
/// of the prompt count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AfterFailure {
    Ended,
    /// llmlb gave up the attempt, but the backend may still be working on the request.
    Abandoned,
}

impl RequestRoute {
    /// Stores the backend that the request is being sent to. `model` is the backend's own name of
    /// the model, if that differs.
    pub(crate) fn note_sent(&mut self, backend: &Arc<Backend>, model: Option<&str>) {
        self.backend = Some(Arc::clone(backend));
        self.served_model = model.map(str::to_owned);
    }

    pub(crate) fn note_delivered(&mut self) {
        self.is_delivered = true;
    }

    pub(crate) fn note_failed(&mut self, backend: &Arc<Backend>, why: &str, after: AfterFailure) {
        self.backend = None;
        self.is_delivered &= after == AfterFailure::Abandoned;
        self.failed.push(FailedAttempt {
            backend: Arc::clone(backend),
            why: why.to_owned(),
        });
    }

    pub(super) fn note_response(&mut self, backend: &Arc<Backend>) {
        self.backend = Some(Arc::clone(backend));
        // The attempt at this backend was listed as failed while its response was held back. Remove
        // it from the list, because the client gets that response after all.
        self.failed
            .retain(|attempt| attempt.backend.id != backend.id);
    }

    pub(super) fn is_delivered(&self) -> bool {
        self.is_delivered
    }

    pub(super) fn attempts(&self) -> Vec<Attempt<'_>> {
        let attempts = self.failed.iter().map(|attempt| Attempt {
            backend: &attempt.backend.name,
            error: &attempt.why,
        });
        attempts.collect()
    }
}
