//! A place at a backend.

use std::sync::Arc;
use std::time::Duration;

use super::backend::Backend;
use super::clock::Moment;
use super::route::Route;

/// One request that a backend is working on. When it is dropped the place is free for the next.
#[derive(Debug)]
pub(crate) struct Slot {
    route: Arc<Route>,
    /// Which of the route's candidates it is.
    place: usize,
    /// A good answer has begun.
    has_begun: bool,
    /// It is a success on an inference endpoint.
    is_success: bool,
}

impl Slot {
    /// Takes a place at one of the route's candidates, if it has one left.
    pub(super) fn take(route: &Arc<Route>, place: usize) -> Option<Self> {
        let backend = route.backend(place);
        backend.stats.occupy(backend.places()).then(|| Self {
            route: Arc::clone(route),
            place,
            has_begun: false,
            is_success: false,
        })
    }

    pub(crate) fn backend(&self) -> &Arc<Backend> {
        self.route.backend(self.place)
    }

    pub(crate) fn route(&self) -> &Arc<Route> {
        &self.route
    }

    /// True if the request names a model, so that other backends may serve the same one.
    pub(crate) fn has_model(&self) -> bool {
        !self.route.is_in_order()
    }

    /// What this backend calls the model, if not by the name asked for.
    pub(crate) fn model(&self) -> Option<&str> {
        self.route.candidates[self.place].model.as_deref()
    }

    /// An answer began; one that is what was asked for, so long after that.
    pub(crate) fn began(&mut self, first_byte: Option<Duration>) {
        self.has_begun = true;
        let (backend, now) = (self.backend(), Moment::now());
        if let Some(first_byte) = first_byte {
            backend.stats.took(first_byte, now);
        }
        self.note_recovery(backend.stats.began(now));
    }

    /// A success on an inference endpoint began: it makes up for errors that a client may have
    /// provoked.
    pub(crate) fn success_began(&mut self) {
        self.is_success = true;
        self.backend().learned.suspicion.success_began();
    }

    /// The answer came to its end.
    pub(crate) fn ended(&self) {
        if self.is_success {
            self.backend().learned.suspicion.clear();
        }
        let stats = &self.backend().stats;
        if self.has_begun && !stats.is_well() {
            self.note_recovery(stats.ended(Moment::now()));
        }
    }

    /// The answer broke off. A bad one has been counted already.
    pub(crate) fn cut(&self) {
        if self.has_begun {
            self.failed();
        }
    }

    /// There was no answer, or no good one, or no end of it.
    pub(crate) fn failed(&self) {
        let (backend, now) = (self.backend(), Moment::now());
        if let Some(until) = backend.stats.failed(now) {
            let (name, pause) = (&backend.name, until.seconds_after(now));
            tracing::warn!("backend {name} ejected for {pause} s after 3 consecutive failures");
            self.route.queue.ejected();
        }
    }

    fn note_recovery(&self, was_ejected: bool) {
        if was_ejected {
            tracing::info!("backend {} answers again", self.backend().name);
            self.route.queue.recovered();
        }
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        self.backend().stats.release();
        self.route.queue.freed(self.backend());
    }
}
