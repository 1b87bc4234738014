//! What a request waits for.

use std::sync::Arc;

use super::backend::Backend;
use super::breaker::Verdict;
use super::choose::{Asked, Choice};
use super::clock::Moment;
use super::endpoints::EndpointKey;
use super::random::Random;
use super::route::Route;
use crate::backend_id::BackendId;

/// What a request waits for.
#[derive(Clone, Debug)]
pub(super) struct Errand {
    /// Who may serve it, as far as is known now.
    pub(super) route: Arc<Route>,
    /// Nobody but this one will do.
    only: Option<BackendId>,
    /// These will not.
    tried: Arc<[BackendId]>,
    /// An endpoint that one of the candidates lacks. `None` otherwise, so that clients cannot make
    /// up paths to open lanes.
    endpoint: Option<EndpointKey>,
    /// It was just found that nothing is free for it.
    pub(super) is_stuck: bool,
}

/// Two are the same if they wait for the same, whoever may serve it now.
impl PartialEq for Errand {
    fn eq(&self, other: &Self) -> bool {
        let (one, another) = (&self.route, &other.route);
        one.kind == another.kind
            && one.name == another.name
            && self.only == other.only
            && self.tried == other.tried
            && self.endpoint == other.endpoint
    }
}

impl Errand {
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
            is_stuck: false,
        }
    }

    /// Takes a place anywhere.
    pub(super) fn choose(&self, now: Moment, random: &mut Random) -> Choice {
        let asked = self.asked(now);
        if self.only.is_some() && asked.only.is_none() {
            return Choice::Down; // It does not serve the model any more.
        }
        asked.choose(random)
    }

    /// Takes a place at this backend, if that is where it may go now.
    pub(super) fn choose_at(&self, backend: &Backend, now: Moment, random: &mut Random) -> Choice {
        let is_free = self.only.is_none() && self.endpoint.is_none();
        let is_plain = !self.route.is_in_order() && is_free;
        match self.route.place(backend.id) {
            Some(place) if is_plain && backend.pulse.verdict(now) == Verdict::Sound => {
                let slot = self.asked(now).take(place);
                slot.map_or(Choice::Busy, Choice::Slot)
            }
            Some(_) => self.choose(now, random),
            None => Choice::Busy,
        }
    }

    /// Whether a place at this backend may be of use. It need not be: that is found out when it is
    /// taken.
    pub(super) fn may_use(&self, backend: &Backend) -> bool {
        self.route.place(backend.id).is_some()
    }

    /// When the first backend that was ejected may be tried again.
    pub(super) fn recovery(&self, now: Moment) -> Option<Moment> {
        self.asked(now).recovery()
    }

    fn asked(&self, now: Moment) -> Asked<'_> {
        Asked {
            route: &self.route,
            only: self.only.and_then(|id| self.route.place(id)),
            tried: &self.tried,
            endpoint: self.endpoint,
            now,
            average: None,
        }
    }
}
