//! Who may serve a model.

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

/// Among so many candidates the average is taken anew each time; among more it may be this old.
const FEW: usize = 64;
const OLD: u64 = 2;

/// Who may serve a model, as it was at one moment.
#[derive(Debug)]
pub(crate) struct Route {
    /// What it is looked up by: those of this kind alone, if one is given ...
    pub(super) kind: Option<Kind>,
    /// ... and the model; `None` for requests that name none.
    pub(super) name: Option<Arc<str>>,
    /// By their number. Those that are down too.
    pub(super) candidates: Vec<Candidate>,
    /// Which of them were up.
    pub(super) up: Vec<usize>,
    /// The shares of those.
    pub(super) shares: Shares,
    /// Whoever waits for one of them.
    pub(super) queue: Arc<Queue>,
    average: AtomicU64,
    /// When that was taken.
    average_at: AtomicU64,
}

/// One that may serve it.
#[derive(Clone, Debug)]
pub(super) struct Candidate {
    pub(super) backend: Arc<Backend>,
    /// What it calls the model, if not by the name that the route has.
    pub(super) model: Option<Arc<str>>,
}

/// How much the usable candidates have to do.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Average {
    outstanding: u32,
    weight: u32,
}

impl Route {
    /// Status with which a candidate rejects our key, if all of them are down because they do.
    pub(crate) fn rejected_key(&self) -> Option<StatusCode> {
        let mut statuses = self
            .candidates
            .iter()
            .map(|one| one.backend.health.rejected_key());
        let first = statuses.next()??;
        statuses.all(|status| status.is_some()).then_some(first)
    }

    /// The candidates must come in the order of their numbers.
    pub(super) fn new(
        kind: Option<Kind>,
        name: Option<Arc<str>>,
        candidates: Vec<Candidate>,
        queue: &Arc<Queue>,
    ) -> Self {
        let places = 0..candidates.len();
        let up: Vec<usize> = places
            .filter(|place| candidates[*place].backend.is_up())
            .collect();
        let weights = up
            .iter()
            .map(|place| candidates[*place].backend.settings.weight);
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

    /// The same model when nobody serves it any more.
    pub(super) fn without_candidates(&self) -> Self {
        Self::new(self.kind, self.name.clone(), Vec::new(), &self.queue)
    }

    /// A request that names no model is for the first that is up, not for the best.
    pub(super) fn is_in_order(&self) -> bool {
        self.name.is_none()
    }

    pub(super) fn backend(&self, place: usize) -> &Arc<Backend> {
        &self.candidates[place].backend
    }

    /// Where a backend is among the candidates.
    pub(super) fn place(&self, id: BackendId) -> Option<usize> {
        self.candidates
            .binary_search_by_key(&id, |one| one.backend.id)
            .ok()
    }

    /// True if this backend is a candidate, and no other one is up and not ejected.
    pub(super) fn is_last(&self, id: BackendId, now: Moment) -> bool {
        let is_sound =
            |backend: &Backend| backend.is_up() && backend.stats.verdict(now) == Verdict::Sound;
        let mut others = self.candidates.iter().filter(|one| one.backend.id != id);
        self.place(id).is_some() && !others.any(|one| is_sound(&one.backend))
    }

    /// True if one of the candidates lacks this endpoint.
    pub(super) fn has_lacking(&self, endpoint: EndpointKey, now: Moment) -> bool {
        let mut candidates = self.candidates.iter();
        candidates.any(|one| one.backend.lacks(endpoint, now))
    }

    /// How much the usable candidates have to do.
    pub(super) fn average(&self, now: Moment) -> Average {
        if self.up.len() <= FEW {
            return self.averaged(now);
        }
        let at = self.average_at.load(Ordering::Relaxed);
        let is_mine = now.0 > at.saturating_add(OLD)
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
        for place in &self.up {
            let backend = self.backend(*place);
            if backend.is_up() && !matches!(backend.stats.verdict(now), Verdict::Ejected(_)) {
                average.outstanding += backend.stats.outstanding();
                average.weight += backend.settings.weight;
            }
        }
        average
    }
}

impl Average {
    /// Whether a backend has no more to do than a quarter above the average, and one more. Who has
    /// twice the weight may have twice as much.
    pub(super) fn bears(self, outstanding: u32, weight: u32) -> bool {
        let total = u64::from(self.weight);
        let average = u64::from(self.outstanding) * u64::from(weight);
        4 * u64::from(outstanding) * total <= 5 * average + 4 * total
    }

    fn pack(self) -> u64 {
        u64::from(self.outstanding) << 32 | u64::from(self.weight)
    }

    #[expect(clippy::cast_possible_truncation, reason = "the two halves")]
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
    fn a_quarter_above_the_average_and_one_more_is_borne() {
        let eight_each = average(32, 4);
        assert!(eight_each.bears(11, 1));
        assert!(!eight_each.bears(12, 1));
        let idle = average(0, 4);
        assert!(idle.bears(1, 1) && !idle.bears(2, 1));
    }

    #[test]
    fn the_average_is_by_weight() {
        // 3 and 9 would be even.
        let uneven = average(12, 4);
        assert!(uneven.bears(12, 3) && !uneven.bears(13, 3));
        assert!(uneven.bears(4, 1) && !uneven.bears(5, 1));
    }

    #[test]
    fn it_is_the_same_after_packing() {
        let packed = Average::unpack(average(7, 65_535_000).pack());
        assert_eq!((packed.outstanding, packed.weight), (7, 65_535_000));
    }
}
