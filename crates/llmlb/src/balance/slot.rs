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
}

impl Slot {
    /// Takes a place at one of the route's candidates, if it has one left.
    pub(super) fn take(route: &Arc<Route>, place: usize) -> Option<Self> {
        let backend = route.backend(place);
        backend.pulse.occupy(backend.places()).then(|| Self {
            route: Arc::clone(route),
            place,
        })
    }

    pub(crate) fn backend(&self) -> &Arc<Backend> {
        self.route.backend(self.place)
    }

    /// What this backend calls the model, if not by the name asked for.
    pub(crate) fn model(&self) -> Option<&str> {
        self.route.candidates[self.place].model.as_deref()
    }

    /// The answer began, so long after the request was sent.
    pub(crate) fn answered(&self, first_byte: Duration) {
        let backend = self.backend();
        backend.has_answered();
        if backend.pulse.answered(first_byte, Moment::now()) {
            tracing::info!("backend {} answers again", backend.name);
            self.route.queue.recovered();
        }
    }

    /// There was no answer, or none that the backend itself gave.
    pub(crate) fn failed(&self) {
        let (backend, now) = (self.backend(), Moment::now());
        if let Some(until) = backend.pulse.failed(now) {
            let pause = until.0.saturating_sub(now.0);
            tracing::warn!(
                "backend {} fails again and again: it gets no requests for {pause} ms",
                backend.name
            );
            self.route.queue.ejected();
        }
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        self.backend().pulse.release();
        self.route.queue.freed(self.backend());
    }
}
