//! Choosing one of a route's candidates and taking a place there.

use std::sync::Arc;

use super::backend::Backend;
use super::breaker::Verdict;
use super::clock::Moment;
use super::endpoints::EndpointKey;
use super::pick::{self, Drawn, Load};
use super::random::Random;
use super::route::{Average, Route};
use super::slot::Slot;
use crate::backend_id::BackendId;

/// Who gets a request.
#[derive(Debug)]
pub(crate) enum Choice {
    Slot(Slot),
    /// Whoever could serve it is at its limit.
    Busy,
    /// Whoever could serve it is down, or was tried.
    Down,
}

/// The candidates of a route that a request may use, and when.
#[derive(Clone, Copy)]
pub(super) struct Selection<'a> {
    pub(super) route: &'a Arc<Route>,
    /// The only candidate that can serve the request.
    pub(super) only: Option<usize>,
    /// Backends that were tried already.
    pub(super) tried: &'a [BackendId],
    /// Backends that lack this endpoint are used only if there are no others.
    pub(super) endpoint: Option<EndpointKey>,
    pub(super) now: Moment,
    /// Candidates with clearly more load than this are avoided.
    pub(super) average: Option<Average>,
}

/// How a candidate stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Standing {
    /// It can be taken.
    Free(Load),
    /// It failed and may be well again: one request is to find out.
    Due,
    /// It can be taken, but fails.
    Failing(Load),
    /// It is at its limit, and works.
    Full,
    /// It is at its limit, and fails.
    FailingAndFull,
    /// It is down, was tried, or lacks the endpoint.
    Out,
}

impl Selection<'_> {
    /// Chooses by load, and takes a place.
    pub(super) fn choose(&self, random: &mut Random) -> Choice {
        match self.choose_serving(random) {
            // A backend's own 404 is better than one that we make up. But an error of a backend that
            // serves the endpoint is better than either.
            Choice::Down if self.endpoint.is_some() && self.tried.is_empty() => {
                let endpoint = None;
                Self { endpoint, ..*self }.choose_serving(random)
            }
            choice => choice,
        }
    }

    fn choose_serving(&self, random: &mut Random) -> Choice {
        if let Some(place) = self.only {
            return self.choose_only(place);
        }
        if self.route.is_in_order() {
            return self.choose_first();
        }
        let up = &self.route.up;
        let picked = pick::pick(&self.route.shares, random, |index| {
            match self.standing(up[index]) {
                Standing::Free(load) if self.bears(load) => Drawn::Fit(load),
                Standing::Due => Drawn::Due,
                _ => Drawn::Unfit,
            }
        });
        let slot = picked.and_then(|index| self.take(up[index]));
        slot.map_or_else(|| self.choose_of_all(random), Choice::Slot)
    }

    /// Takes a place, unless somebody else was quicker.
    pub(super) fn take(&self, place: usize) -> Option<Slot> {
        match self.standing(place) {
            Standing::Due if !self.backend(place).stats.claim_trial(self.now) => None,
            Standing::Free(_) | Standing::Due | Standing::Failing(_) => {
                Slot::take(self.route, place)
            }
            Standing::Full | Standing::FailingAndFull | Standing::Out => None,
        }
    }

    pub(super) fn standing(&self, place: usize) -> Standing {
        let backend = self.backend(place);
        let stats = &backend.stats;
        if !stats.is_up() || self.tried.contains(&backend.id) || self.is_lacking(backend) {
            return Standing::Out;
        }
        let outstanding = stats.outstanding();
        let is_full = outstanding >= backend.places();
        let load = || Load {
            outstanding,
            latency: stats.latency(self.now),
            weight: backend.settings.weight,
        };
        match (self.verdict(place), is_full) {
            (Verdict::Sound, false) => Standing::Free(load()),
            (Verdict::Due, false) => Standing::Due,
            (Verdict::Ejected(_), false) => Standing::Failing(load()),
            (Verdict::Sound | Verdict::Due, true) => Standing::Full,
            (Verdict::Ejected(_), true) => Standing::FailingAndFull,
        }
    }

    /// When the first of those that were ejected may be tried again.
    pub(super) fn recovery(&self) -> Option<Moment> {
        if self.route.is_in_order() {
            return None; // It makes no difference there.
        }
        let mut soonest: Option<Moment> = None;
        for place in 0..self.route.candidates.len() {
            if self.only.is_some_and(|only| only != place) {
                continue;
            }
            let end = match (self.standing(place), self.verdict(place)) {
                (Standing::Out, _) => None,
                (Standing::Due, _) => Some(self.now),
                (_, Verdict::Ejected(until)) => Some(until),
                (_, Verdict::Sound | Verdict::Due) => None,
            };
            soonest = [soonest, end].into_iter().flatten().min();
        }
        soonest
    }

    fn is_lacking(&self, backend: &Backend) -> bool {
        self.endpoint
            .is_some_and(|endpoint| backend.lacks(endpoint, self.now))
    }

    fn bears(&self, load: Load) -> bool {
        let average = self.average;
        average.is_none_or(|average| average.bears(load.outstanding, load.weight))
    }

    fn verdict(&self, place: usize) -> Verdict {
        self.backend(place).stats.verdict(self.now)
    }

    /// Looks at everyone, since the draws met nobody.
    fn choose_of_all(&self, random: &mut Random) -> Choice {
        let mut look = || self.look_at_all(random);
        look().or_else(look).unwrap_or(Choice::Busy)
    }

    /// `None`: somebody else was quicker.
    fn look_at_all(&self, random: &mut Random) -> Option<Choice> {
        // What came up since the route was made is here too.
        let count = self.route.candidates.len();
        let start = random.below(u32::try_from(count).unwrap_or(u32::MAX)) as usize;
        let mut best: Option<(usize, Load)> = None;
        let mut best_failing: Option<(usize, Load)> = None;
        let (mut is_busy, mut is_up) = (false, false);
        for place in (start..count).chain(0..start) {
            let (load, best) = match self.standing(place) {
                Standing::Due => {
                    if let Some(slot) = self.take(place) {
                        return Some(Choice::Slot(slot));
                    }
                    is_up = true;
                    continue;
                }
                Standing::Free(load) => (load, &mut best),
                Standing::Failing(load) => (load, &mut best_failing),
                Standing::Full => {
                    is_busy = true;
                    continue;
                }
                Standing::FailingAndFull => {
                    is_up = true;
                    continue;
                }
                Standing::Out => continue,
            };
            if best.is_none_or(|(_, before)| pick::is_better(load, before)) {
                *best = Some((place, load));
            }
        }
        // Use an ejected backend only if no healthy backend is merely at capacity.
        let best = match best {
            None if !is_busy => best_failing,
            best => best,
        };
        match best {
            Some((place, _)) => self.take(place).map(Choice::Slot),
            None if is_busy || is_up => Some(Choice::Busy),
            None => Some(Choice::Down),
        }
    }

    fn choose_only(&self, place: usize) -> Choice {
        match self.standing(place) {
            Standing::Out => Choice::Down,
            Standing::Full | Standing::FailingAndFull => Choice::Busy,
            Standing::Free(_) | Standing::Failing(_) | Standing::Due => {
                // Nobody else can answer: whether it is on trial does not matter.
                self.backend(place).stats.claim_trial(self.now);
                Slot::take(self.route, place).map_or(Choice::Busy, Choice::Slot)
            }
        }
    }

    fn choose_first(&self) -> Choice {
        // Even if it fails: what such requests are about lies there, and nowhere else.
        let is_up = |place: &usize| self.standing(*place) != Standing::Out;
        let first = (0..self.route.candidates.len()).find(is_up);
        first.map_or(Choice::Down, |place| self.choose_only(place))
    }

    fn backend(&self, place: usize) -> &Arc<Backend> {
        self.route.backend(place)
    }
}
