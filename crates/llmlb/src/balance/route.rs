//! The backends that may serve a model.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use http::StatusCode;

use super::backend::Backend;
use super::breaker::Verdict;
use super::clock::Moment;
use super::endpoints::EndpointKey;
use super::pick::Shares;
use super::queue::Queue;
use crate::backend_id::BackendId;
use crate::config::Kind;

/// Maximum number of candidates for which the average load is computed anew for each request. With
/// more candidates a cached average is used, since the computation reads every candidate.
const MAX_UNCACHED: usize = 64;
/// Maximum age of a cached average load, in milliseconds.
const MAX_AVERAGE_AGE: u64 = 2;

/// Backends that may serve a model. A route does not change: each change of the backends builds a
/// new table with new routes.
#[derive(Debug)]
pub(crate) struct Route {
    /// Kind (program) that all candidates must have, for requests to Ollama's own API. `None` if
    /// backends of every kind are candidates.
    pub(super) kind: Option<Kind>,
    /// Name of the model that the route is for; `None` for requests without a model.
    pub(super) name: Option<Arc<str>>,
    /// Backends that may serve the route's model, also those that are down. Sorted by the backends'
    /// ids, because [`Self::index_of`] does a binary search. The candidates of a request without a model
    /// are in the order of the configuration.
    pub(super) candidates: Vec<Candidate>,
    /// Indices of the candidates that were up when the route was built.
    pub(super) up: Vec<usize>,
    /// Shares of the candidates in `up` in the random draws that select a backend.
    pub(super) shares: Shares,
    pub(super) queue: Arc<Queue>,
    /// Cached average load of the candidates, as a packed [`Average`].
    average: AtomicU64,
    /// Time at which the cached average was computed.
    average_at: AtomicU64,
}

/// A backend that may serve the model of a route.
#[derive(Clone, Debug)]
pub(super) struct Candidate {
    pub(super) backend: Arc<Backend>,
    /// Model as the backend names it, if that differs from the route's name.
    pub(super) model: Option<Arc<str>>,
}

/// Average load of all usable candidates, as the sum of their requests and the sum of their
/// weights.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Average {
    outstanding: u32,
    weight: u32,
}

impl Route {
    /// Returns the status with which the first candidate rejects our key, if all candidates are
    /// down because of the key.
    pub(crate) fn rejected_key(&self) -> Option<StatusCode> {
        let mut statuses = self
            .candidates
            .iter()
            .map(|one| one.backend.health.rejected_key());
        let first = statuses.next()??;
        statuses.all(|status| status.is_some()).then_some(first)
    }

    /// Creates a route.
    pub(super) fn new(
        kind: Option<Kind>,
        name: Option<Arc<str>>,
        mut candidates: Vec<Candidate>,
        queue: &Arc<Queue>,
    ) -> Self {
        if name.is_some() {
            candidates.sort_by_key(|one| one.backend.id);
        }
        let indices = 0..candidates.len();
        let up: Vec<usize> = indices
            .filter(|index| candidates[*index].backend.is_up())
            .collect();
        let weights = up
            .iter()
            .map(|index| candidates[*index].backend.settings.weight);
        Self {
            shares: Shares::new(weights),
            kind,
            name,
            candidates,
            up,
            queue: Arc::clone(queue),
            average: AtomicU64::new(0),
            average_at: AtomicU64::new(0),
        }
    }

    /// Returns a route without backends, for a model that no backend serves any more.
    pub(super) fn without_candidates(&self) -> Self {
        Self::new(self.kind, self.name.clone(), Vec::new(), &self.queue)
    }

    /// True for requests without a model: they are sent to the first backend that is up, not to the best.
    pub(super) fn is_in_order(&self) -> bool {
        self.name.is_none()
    }

    pub(super) fn backend(&self, index: usize) -> &Arc<Backend> {
        &self.candidates[index].backend
    }

    /// Returns the index of a backend among the candidates.
    pub(super) fn index_of(&self, id: BackendId) -> Option<usize> {
        if self.is_in_order() {
            return self.candidates.iter().position(|one| one.backend.id == id);
        }
        self.candidates
            .binary_search_by_key(&id, |one| one.backend.id)
            .ok()
    }

    /// True if this backend is a candidate, and no other candidate is up and not ejected. Its
    /// ejection would leave the model without a healthy backend.
    pub(super) fn is_last(&self, id: BackendId, now: Moment) -> bool {
        let is_healthy =
            |backend: &Backend| backend.is_up() && backend.stats.verdict(now) == Verdict::Healthy;
        let mut others = self.candidates.iter().filter(|one| one.backend.id != id);
        self.index_of(id).is_some() && !others.any(|one| is_healthy(&one.backend))
    }

    /// True if one of the candidates lacks this endpoint, so that other candidates must be
    /// preferred.
    pub(super) fn has_lacking(&self, endpoint: EndpointKey, now: Moment) -> bool {
        let mut candidates = self.candidates.iter();
        candidates.any(|one| one.backend.lacks(endpoint, now))
    }

    /// True if one of the route's candidates accepts WebSockets on the path of `endpoint`, by the
    /// configuration (`backend.websocket`) or an earlier handshake. If false, the handshake gets a
    /// 426, so that the client uses HTTP at once.
    pub(crate) fn accepts_websocket(&self, endpoint: EndpointKey) -> bool {
        let now = Moment::now();
        let mut candidates = self.candidates.iter();
        candidates.any(|one| !one.backend.lacks(endpoint, now))
    }

    /// Returns the average load of the usable candidates, from the cache if there are many.
    pub(super) fn average(&self, now: Moment) -> Average {
        if self.up.len() <= MAX_UNCACHED {
            return self.averaged(now);
        }
        let at = self.average_at.load(Ordering::Relaxed);
        // Let only one thread replace an expired average. Other threads use the old average
        // meanwhile, so that none waits.
        let is_mine = now.0 > at.saturating_add(MAX_AVERAGE_AGE)
            && self
                .average_at
                .compare_exchange(at, now.0, Ordering::Relaxed, Ordering::Relaxed)
                .is_ok();
        if is_mine || at == 0 {
            let average = self.averaged(now);
            self.average.store(average.pack(), Ordering::Relaxed);
            return average;
        }
        Average::unpack(self.average.load(Ordering::Relaxed))
    }

    fn averaged(&self, now: Moment) -> Average {
        let mut average = Average::default();
        for index in &self.up {
            let backend = self.backend(*index);
            if backend.is_up() && !matches!(backend.stats.verdict(now), Verdict::Ejected(_)) {
                average.outstanding += backend.stats.outstanding();
                average.weight += backend.settings.weight;
            }
        }
        average
    }
}

impl Average {
    /// True if a backend is not overloaded: its number of outstanding requests is at most a quarter
    /// above the average for its weight, plus one request. Checked only for a request whose prompt
    /// begins like one that a backend received before: that backend, and then the random draws, must
    /// not be overloaded. If the draws find no backend, all are compared without this check.
    pub(super) fn allows(self, outstanding: u32, weight: u32) -> bool {
        let total = u64::from(self.weight);
        let average = u64::from(self.outstanding) * u64::from(weight);
        4 * u64::from(outstanding) * total <= 5 * average + 4 * total
    }

    fn pack(self) -> u64 {
        u64::from(self.outstanding) << 32 | u64::from(self.weight)
    }

    #[expect(
        clippy::cast_possible_truncation,
        reason = "the number is split into its halves"
    )]
    fn unpack(packed: u64) -> Self {
        Self {
            outstanding: (packed >> 32) as u32,
            weight: packed as u32,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn average(outstanding: u32, weight: u32) -> Average {
        Average {
            outstanding,
            weight,
        }
    }

    #[test]
    fn load_may_be_a_quarter_above_average_plus_one_request() {
        let eight_each = average(32, 4);
        assert!(eight_each.allows(11, 1));
        assert!(!eight_each.allows(12, 1));
        let idle = average(0, 4);
        assert!(idle.allows(1, 1) && !idle.allows(2, 1));
    }

    #[test]
    fn average_is_by_weight() {
        // 12 requests for a total weight of 4: an even load is 3 for weight 1 and 9 for weight 3.
        let uneven = average(12, 4);
        assert!(uneven.allows(12, 3) && !uneven.allows(13, 3));
        assert!(uneven.allows(4, 1) && !uneven.allows(5, 1));
    }

    #[test]
    fn average_is_the_same_after_packing() {
        let packed = Average::unpack(average(7, 65_535_000).pack());
        assert_eq!((packed.outstanding, packed.weight), (7, 65_535_000));
    }
}
