//! Model of a request and the backends that it was sent to, when, and why, for the access log and the
//! usage record.

use std::sync::Arc;
use std::time::Instant;

use super::RequestIdentity;
use crate::backend_id::BackendId;
use crate::balance::{Backend, Comparison, SelectHints, Slot};
use crate::meter::record;
use crate::recent::{Attempt, FailedAttempt, QueueTime};
use crate::upstream::AddressShare;

#[derive(Debug, Default)]
pub(crate) struct RequestRoute {
    pub(crate) model: Option<String>,
    /// Name by which the backend knows the model, if it differs from the client's name.
    pub(crate) served_model: Option<String>,
    /// Some backend lists the model, or it is an alias.
    pub(super) is_known_model: bool,
    pub(crate) backend: Option<Arc<Backend>>,
    /// Time at which the request was sent to `backend`; `None` once the first byte of its response is noted.
    pub(super) sent_at: Option<Instant>,
    /// True if a backend received the request and may be working on it, so that the tokens of the
    /// prompt count.
    is_delivered: bool,
    pub(crate) failed: Vec<FailedAttempt>,
    /// The attempt in progress, or the one whose response the client gets.
    pub(crate) attempt: Option<Attempt>,
    /// Candidates at the last selection.
    pub(crate) candidates: Comparison,
    pub(crate) queue: QueueTime,
    /// Share of the client's address in the connections to backends. Dropping it frees the share.
    pub(super) address_share: Option<AddressShare>,
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
    /// Notes the start of an attempt at the backend of this slot, and the candidates among which the backend
    /// was selected.
    pub(crate) fn note_selected(
        &mut self,
        slot: &Slot,
        hints: &SelectHints<'_>,
        tried: &[BackendId],
        started: Instant,
    ) {
        self.attempt = Some(Attempt {
            reason: slot.reason(),
            // At most `MAX_ATTEMPTS`.
            number: u8::try_from(self.failed.len()).unwrap_or(u8::MAX),
            started,
            head: None,
        });
        slot.note_candidates(hints, tried, started, &mut self.candidates);
    }

    /// Notes the time of the response's head.
    pub(crate) fn note_head(&mut self, at: Instant) {
        if let Some(attempt) = &mut self.attempt {
            attempt.head = Some(at);
        }
    }

    /// Stores the backend that the request is being sent to. `model` is the backend's own name of
    /// the model, if that differs.
    pub(crate) fn note_sent(&mut self, backend: &Arc<Backend>, model: Option<&str>) {
        // Also called when the response to the last attempt arrives, which was sent earlier.
        let is_same = self
            .backend
            .as_ref()
            .is_some_and(|one| one.id == backend.id);
        if !is_same || self.sent_at.is_none() {
            self.sent_at = Some(Instant::now());
        }
        self.backend = Some(Arc::clone(backend));
        self.served_model = model.map(str::to_owned);
    }

    pub(crate) fn note_delivered(&mut self) {
        self.is_delivered = true;
    }

    pub(crate) fn note_failed(&mut self, backend: &Arc<Backend>, why: &str, after: AfterFailure) {
        self.backend = None;
        self.is_delivered &= after == AfterFailure::Abandoned;
        if let Some(times) = self.attempt.take() {
            self.failed.push(FailedAttempt {
                backend: Arc::clone(backend),
                why: why.to_owned(),
                times,
                ended: Instant::now(),
            });
        }
    }

    pub(super) fn note_response(&mut self, backend: &Arc<Backend>) {
        self.backend = Some(Arc::clone(backend));
        // The attempt at this backend was listed as failed while its response was held back. Remove
        // it from the list, because the client gets that response after all.
        let is_this = |attempt: &FailedAttempt| attempt.backend.id == backend.id;
        if let Some(place) = self.failed.iter().position(is_this) {
            self.attempt = Some(self.failed.remove(place).times);
        }
    }

    pub(super) fn is_delivered(&self) -> bool {
        self.is_delivered
    }

    pub(super) fn attempts(&self, identity: &RequestIdentity) -> Vec<record::Attempt<'_>> {
        let attempts = self.failed.iter().map(|attempt| record::Attempt {
            backend: &attempt.backend.name,
            error: &attempt.why,
            why: attempt.times.reason.name(),
            at_ms: identity.ms_until(attempt.times.started),
            ms: attempt.ms(),
        });
        attempts.collect()
    }
}
