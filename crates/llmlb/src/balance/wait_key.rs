//! The key of a waiting request: requests with equal keys share a lane of the queue.

use std::sync::Arc;

use super::backend::Backend;
use super::breaker::Verdict;
use super::choose::{Choice, Selection};
use super::clock::Moment;
use super::endpoints::EndpointKey;
use super::random::Random;
use super::route::Route;
use crate::backend_id::BackendId;

/// Key by which the queue groups waiting requests. The key determines the backends that can serve a
/// request. Requests with equal keys wait in one lane.
#[derive(Clone, Debug)]
pub(super) struct WaitKey {
    /// Route with the backends that may serve the request. It is replaced when the backends change.
    pub(super) route: Arc<Route>,
    /// The only backend that can serve the request, if it names an id that this backend issued.
    only: Option<BackendId>,
    /// Backends on which the request has failed already. They are not used again.
    tried: Arc<[BackendId]>,
    /// Endpoint of the request, if one of the candidates lacks it. `None` otherwise, so that
    /// invented paths do not split the queue into many keys.
    endpoint: Option<EndpointKey>,
    /// True if no backend had a free slot for this key in the current pass over the queue. The pass
    /// then skips all requests with this key, since they would get no slot either.
    pub(super) is_blocked: bool,
}

/// Keys are equal if the same backends can serve their requests, which then share a lane. The
/// current candidates are not compared, because they follow from the kind and the model.
impl PartialEq for WaitKey {
    fn eq(&self, other: &Self) -> bool {
        let (one, another) = (&self.route, &other.route);
        one.kind == another.kind
            && one.name == another.name
            && self.only == other.only
            && self.tried == other.tried
            && self.endpoint == other.endpoint
    }
}

impl WaitKey {
    pub(super) fn new(
        route: Arc<Route>,
        only: Option<BackendId>,
        tried: &[BackendId],
        endpoint: Option<EndpointKey>,
    ) -> Self {
        let now = Moment::now();
        let is_lacking = |endpoint: &EndpointKey| route.has_lacking(*endpoint, now);
        Self {
            endpoint: endpoint.filter(is_lacking),
            route,
            only,
            tried: tried.into(),
            is_blocked: false,
        }
    }

    /// Selects one of all candidates and acquires a slot there.
    pub(super) fn choose(&self, now: Moment, random: &mut Random) -> Choice {
        let selection = self.selection(now);
        if self.only.is_some() && selection.only.is_none() {
            return Choice::Down; // The only backend does not serve the model any more.
        }
        selection.choose(random)
    }

    /// Acquires a slot at this backend, which just became free, if the request may be sent there
    /// now.
    pub(super) fn choose_at(&self, backend: &Backend, now: Moment, random: &mut Random) -> Choice {
        let is_free = self.only.is_none() && self.endpoint.is_none();
        let is_plain = !self.route.is_in_order() && is_free;
        match self.route.index_of(backend.id) {
            Some(index) if is_plain && backend.stats.verdict(now) == Verdict::Healthy => {
                let slot = self.selection(now).acquire(index);
                slot.map_or(Choice::Busy, Choice::Slot)
            }
            Some(_) => self.choose(now, random),
            None => Choice::Busy,
        }
    }

    /// True if this backend is a candidate. Acquiring its slot can still fail.
    pub(super) fn may_use(&self, backend: &Backend) -> bool {
        self.route.index_of(backend.id).is_some()
    }

    /// Earliest time at which an ejected candidate may be tried again, so that a waiting request
    /// wakes then. `None` if no usable candidate is ejected, and for requests without a model.
    pub(super) fn recovery(&self, now: Moment) -> Option<Moment> {
        self.selection(now).recovery()
    }

    fn selection(&self, now: Moment) -> Selection<'_> {
        Selection {
            route: &self.route,
            only: self.only.and_then(|id| self.route.index_of(id)),
            tried: &self.tried,
            endpoint: self.endpoint,
            now,
            average: None,
        }
    }
}
