//! The backends that a request was sent to.

use std::sync::Arc;
use std::time::Instant;

use crate::balance::Backend;
use crate::meter::record::Attempt;
use crate::upstream::AddressShare;

/// Model that a request names, and the backends that the request was sent to. The access log and
/// the usage record report both.
#[derive(Debug, Default)]
pub(crate) struct RequestRoute {
    /// Model as the client names it.
    pub(crate) model: Option<String>,
    /// Model as the backend names it, if that differs.
    pub(crate) served_model: Option<String>,
    /// The backend that the request was sent to last, or whose response the client gets.
    pub(crate) backend: Option<Arc<Backend>>,
    /// Time at which the request was sent to `backend`; `None` once the first byte of its response is noted.
    pub(super) sent_at: Option<Instant>,
    /// A backend received the request, and may be working on it.
    is_delivered: bool,
    pub(crate) failed: Vec<FailedAttempt>,
    /// Share of the client's address in the connections to backends, held until the guard is dropped.
    pub(super) address_share: Option<AddressShare>,
}

/// An attempt that yielded no usable response.
#[derive(Debug)]
pub(crate) struct FailedAttempt {
    pub(crate) backend: Arc<Backend>,
    pub(crate) why: String,
}

/// State of a backend after a failed attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AfterFailure {
    /// The backend is not working on the request.
    Ended,
    /// The attempt was abandoned: the backend may still be working on the request.
    Abandoned,
}

impl RequestRoute {
    /// Notes that the request is sent to a backend. `model` is the backend's own name of the model, if
    /// that differs.
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

    /// Notes that the backend received the request, or part of it.
    pub(crate) fn note_delivered(&mut self) {
        self.is_delivered = true;
    }

    /// Notes that the attempt at this backend failed.
    pub(crate) fn note_failed(&mut self, backend: &Arc<Backend>, why: &str, after: AfterFailure) {
        self.backend = None;
        self.is_delivered &= after == AfterFailure::Abandoned;
        self.failed.push(FailedAttempt {
            backend: Arc::clone(backend),
            why: why.to_owned(),
        });
    }

    /// Notes that the client gets the response of this backend.
    pub(super) fn note_response(&mut self, backend: &Arc<Backend>) {
        self.backend = Some(Arc::clone(backend));
        // The attempt at this backend was noted as failed while its response was held back. Now the
        // client gets that response, so the attempt is removed from the failed ones.
        self.failed
            .retain(|attempt| attempt.backend.id != backend.id);
    }

    /// True if a backend received the request and may be working on it.
    pub(super) fn is_delivered(&self) -> bool {
        self.is_delivered
    }

    /// Returns the failed attempts in the form in which the usage record lists them.
    pub(super) fn attempts(&self) -> Vec<Attempt<'_>> {
        let attempts = self.failed.iter().map(|attempt| Attempt {
            backend: &attempt.backend.name,
            error: &attempt.why,
        });
        attempts.collect()
    }
}
