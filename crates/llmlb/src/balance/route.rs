//! Who may serve a model.

use std::sync::Arc;

use super::backend::{Backend, BackendId};
use super::queue::Queue;

/// Who may serve a model, as it was at one moment.
#[derive(Debug)]
pub(crate) struct Route {
    /// By their number. Those that are down too.
    pub(super) candidates: Vec<Candidate>,
    /// The first that is up is meant, not the best.
    pub(super) in_order: bool,
    /// Whoever waits for one of them.
    pub(super) queue: Arc<Queue>,
}

/// One that may serve it.
#[derive(Clone, Debug)]
pub(super) struct Candidate {
    pub(super) backend: Arc<Backend>,
    /// What it calls the model, if not by the name that the route has.
    pub(super) model: Option<Arc<str>>,
}

impl Route {
    /// Where a backend is among the candidates.
    pub(super) fn place(&self, id: BackendId) -> Option<usize> {
        self.candidates
            .binary_search_by_key(&id, |one| one.backend.id)
            .ok()
    }
}
