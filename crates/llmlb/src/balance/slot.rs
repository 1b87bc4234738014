//! Slots at backends: each is one unit of a backend's concurrency and is held by one request.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::backend::Backend;
use super::clock::Moment;
use super::reason::{ChoiceReason, Comparison};
use super::route::Route;
use super::{BackendId, SelectHints};

/// A slot at a backend. Dropping it frees the slot for the next request.
#[derive(Debug)]
pub(crate) struct Slot {
    route: Arc<Route>,
    /// Index, in the candidates of `route`, of the backend that the slot belongs to.
    index: usize,
    /// The reason for which this backend was selected.
    reason: ChoiceReason,
    /// True if a response has begun that does not count as a failure. Only then does its complete
    /// end clear the backend's failures, and its early end count as a failure.
    has_begun: bool,
    /// True if the response is a success on an inference endpoint. Its complete end clears the
    /// suspicion from responses that a client may have provoked.
    is_success: bool,
}

impl Slot {
    /// Acquires a slot at one of the route's candidates. `None` if all slots of that backend are in
    /// use.
    pub(super) fn acquire(route: &Arc<Route>, index: usize, reason: ChoiceReason) -> Option<Self> {
        let backend = route.backend(index);
        backend
            .stats
            .try_acquire(backend.max_slots())
            .then(|| Self {
                route: Arc::clone(route),
                index,
                reason,
                has_begun: false,
                is_success: false,
            })
    }

    pub(crate) fn backend(&self) -> &Arc<Backend> {
        self.route.backend(self.index)
    }

    pub(crate) fn reason(&self) -> ChoiceReason {
        self.reason
    }

    /// Notes a reason that is known only after the slot was acquired. A choice that the request left no
    /// room for keeps its reason.
    pub(super) fn note_reason(&mut self, reason: ChoiceReason) {
        if matches!(
            self.reason,
            ChoiceReason::Load | ChoiceReason::Trial | ChoiceReason::Ejected
        ) {
            self.reason = reason;
        }
    }

    /// Notes the candidates among which this slot's backend was selected. `started` is the current time.
    pub(crate) fn note_candidates(
        &self,
        hints: &SelectHints<'_>,
        tried: &[BackendId],
        started: Instant,
        comparison: &mut Comparison,
    ) {
        comparison.note(&self.route, self.index, hints, tried, Moment::at(started));
    }

    pub(crate) fn route(&self) -> &Arc<Route> {
        &self.route
    }

    /// True if the request names a model: then other backends may serve the same model.
    pub(crate) fn has_model(&self) -> bool {
        !self.route.is_in_order()
    }

    /// Returns the model's name at the backend, if it differs from the name in the client's
    /// request.
    pub(crate) fn model(&self) -> Option<&str> {
        self.route.candidates[self.index].model.as_deref()
    }

    /// Notes that a response began. `first_byte` is its latency, if it counts for the backend's average.
    pub(crate) fn note_began(&mut self, first_byte: Option<Duration>) {
        self.has_begun = true;
        let (backend, now) = (self.backend(), Moment::now());
        if let Some(first_byte) = first_byte {
            backend.stats.note_latency(first_byte, now);
        }
        self.note_recovery(backend.stats.note_began(now));
    }

    /// Notes that a success on an inference endpoint began. It clears the suspicion from errors that a
    /// client may have provoked.
    pub(crate) fn note_success_began(&mut self) {
        self.is_success = true;
        self.backend().learned.suspicion.note_success_began();
    }

    /// Notes that the response is complete. The complete end of a success clears the suspicion, and
    /// that of any response that is no failure clears the backend's failures.
    pub(crate) fn note_ended(&self) {
        if self.is_success {
            self.backend().learned.suspicion.clear();
        }
        let stats = &self.backend().stats;
        if self.has_begun && !stats.has_no_failures() {
            self.note_recovery(stats.note_ended(Moment::now()));
        }
    }

    /// Notes that the response ended early, which counts as a failure. An error response does not
    /// count here: it has been counted already.
    pub(crate) fn note_cut(&self) {
        if self.has_begun {
            self.note_failed();
        }
    }

    /// Notes a failure: no response, an error response, or a response that ended early.
    pub(crate) fn note_failed(&self) {
        let (backend, now) = (self.backend(), Moment::now());
        if let Some(until) = backend.stats.note_failed(now) {
            let (name, pause) = (&backend.name, until.seconds_after(now));
            tracing::warn!("backend {name} ejected for {pause} s after 3 consecutive failures");
            self.route.queue.backend_ejected();
        }
    }

    fn note_recovery(&self, was_ejected: bool) {
        if was_ejected {
            tracing::info!("backend {} responds again", self.backend().name);
            self.route.queue.backend_recovered();
        }
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        self.backend().stats.release();
        self.route.queue.slot_freed(self.backend());
    }
}
