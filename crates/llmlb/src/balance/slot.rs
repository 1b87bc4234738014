//! A place at a backend.

use std::sync::Arc;
use std::time::Duration;

use super::backend::Backend;
use super::route::Route;

/// One request that a backend is working on.
#[derive(Debug)]
pub(crate) struct Slot {
    route: Arc<Route>,
    /// Which of the route's candidates it is.
    place: usize,
}

impl Slot {
    /// Takes a place at one of the route's candidates, if it has one left.
    pub(super) fn take(route: &Arc<Route>, place: usize) -> Option<Self> {
        let backend = &route.candidates.get(place)?.backend;
        backend.occupy().then(|| Self {
            route: Arc::clone(route),
            place,
        })
    }

    pub(crate) fn backend(&self) -> &Arc<Backend> {
        &self.route.candidates[self.place].backend
    }

    /// What this backend calls the model, if not by the name asked for.
    pub(crate) fn model(&self) -> Option<&str> {
        self.route.candidates[self.place].model.as_deref()
    }

    /// The answer began, so long after the request was sent.
    pub(crate) fn answered(&self, _first_byte: Duration) {}

    /// There was no answer, or none that the backend itself gave.
    pub(crate) fn failed(&self) {}
}

impl Drop for Slot {
    fn drop(&mut self) {
        self.backend().release();
        self.route.queue.freed();
    }
}
