//! Selects one of a route's candidates and acquires a slot at its backend.

use std::sync::Arc;

use super::backend::Backend;
use super::breaker::Verdict;
use super::clock::Moment;
use super::endpoints::EndpointKey;
use super::pick::{self, Drawn, Load};
use super::random::Random;
use super::reason::ChoiceReason;
use super::route::{Average, Route};
use super::slot::Slot;
use crate::backend_id::BackendId;

/// Result of a selection.
#[derive(Debug)]
pub(crate) enum Choice {
    Slot(Slot),
    /// All backends that could serve the request are at `max_concurrent`.
    Busy,
    /// All backends that could serve the request are down or were tried.
    Down,
}

/// Inputs for the selection of a backend: the candidates of a route, the restrictions of the
/// request, the current time and the average load.
#[derive(Clone, Copy)]
pub(super) struct Selection<'a> {
    pub(super) route: &'a Arc<Route>,
    /// Index of the only candidate that can serve the request, because it issued an id that the
    /// request names. `None` if every candidate may serve the request.
    pub(super) only: Option<usize>,
    /// Backends on which the request has failed already. They are not selected again.
    pub(super) tried: &'a [BackendId],
    /// Backends that lack this endpoint are used only if there are no others.
    pub(super) endpoint: Option<EndpointKey>,
    pub(super) now: Moment,
    /// Average load of the candidates. Candidates with a clearly higher load are avoided. `None` if
    /// the load is not limited.
    pub(super) average: Option<Average>,
}

/// Availability of a candidate for a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Availability {
    /// The backend is healthy and has a free slot.
    Free(Load),
    /// The backend was ejected, and the trial is due.
    TrialDue,
    /// The backend is ejected and has a free slot.
    Ejected(Load),
    /// The backend is healthy and at `max_concurrent`.
    Full,
    /// The backend is ejected and at `max_concurrent`.
    EjectedAndFull,
    /// The backend is down, was tried, or lacks the endpoint.
    Unavailable,
}

impl Selection<'_> {
    /// Selects a candidate by load and acquires a slot.
    pub(super) fn choose(&self, random: &mut Random) -> Choice {
        match self.choose_serving(random) {
            // If every backend lacks the endpoint, the request is sent to one of them, whose 404 reaches the
            // client. After a failed attempt, the client gets the error of that attempt instead, which is
            // more useful than a 404.
            Choice::Down if self.endpoint.is_some() && self.tried.is_empty() => {
                let endpoint = None;
                Self { endpoint, ..*self }.choose_serving(random)
            }
            choice => choice,
        }
    }

    fn choose_serving(&self, random: &mut Random) -> Choice {
        if let Some(index) = self.only {
            return self.choose_only(index);
        }
        if self.route.is_in_order() {
            return self.choose_first();
        }
        let up = &self.route.up;
        let picked = pick::pick(&self.route.shares, random, |index| {
            match self.availability(up[index]) {
                Availability::Free(load) if self.allows(load) => Drawn::Usable(load),
                Availability::TrialDue => Drawn::TrialDue,
                _ => Drawn::Unusable,
            }
        });
        let slot = picked.and_then(|index| self.acquire(up[index]));
        slot.map_or_else(|| self.choose_of_all(random), Choice::Slot)
    }

    /// Acquires a slot at a candidate. `None` if the candidate is unavailable, or another request
    /// acquired its last slot first.
    pub(super) fn acquire(&self, index: usize) -> Option<Slot> {
        let by_state = match self.availability(index) {
            Availability::TrialDue if !self.backend(index).stats.claim_trial(self.now) => {
                return None;
            }
            Availability::Free(_) => ChoiceReason::Load,
            Availability::TrialDue => ChoiceReason::Trial,
            Availability::Ejected(_) => ChoiceReason::Ejected,
            Availability::Full | Availability::EjectedAndFull | Availability::Unavailable => {
                return None;
            }
        };
        Slot::acquire(self.route, index, self.reason(by_state))
    }

    pub(super) fn availability(&self, index: usize) -> Availability {
        let backend = self.backend(index);
        let stats = &backend.stats;
        if !stats.is_up() || self.tried.contains(&backend.id) || self.is_lacking(backend) {
            return Availability::Unavailable;
        }
        let outstanding = stats.outstanding();
        let is_full = outstanding >= backend.max_slots();
        let load = || Load {
            outstanding,
            latency: stats.latency(self.now),
            weight: backend.settings.weight,
        };
        match (self.verdict(index), is_full) {
            (Verdict::Healthy, false) => Availability::Free(load()),
            (Verdict::TrialDue, false) => Availability::TrialDue,
            (Verdict::Ejected(_), false) => Availability::Ejected(load()),
            (Verdict::Healthy | Verdict::TrialDue, true) => Availability::Full,
            (Verdict::Ejected(_), true) => Availability::EjectedAndFull,
        }
    }

    /// Earliest time at which an ejected candidate may be tried again, so that a waiting request
    /// wakes then. `None` if no usable candidate is ejected, and for requests without a model.
    pub(super) fn recovery(&self) -> Option<Moment> {
        if self.route.is_in_order() {
            return None; // Requests without a model use ejected backends too.
        }
        let mut soonest: Option<Moment> = None;
        for index in 0..self.route.candidates.len() {
            if self.only.is_some_and(|only| only != index) {
                continue;
            }
            let end = match (self.availability(index), self.verdict(index)) {
                (Availability::Unavailable, _) => None,
                (Availability::TrialDue, _) => Some(self.now),
                (_, Verdict::Ejected(until)) => Some(until),
                (_, Verdict::Healthy | Verdict::TrialDue) => None,
            };
            soonest = [soonest, end].into_iter().flatten().min();
        }
        soonest
    }

    fn is_lacking(&self, backend: &Backend) -> bool {
        self.endpoint
            .is_some_and(|endpoint| backend.lacks(endpoint, self.now))
    }

    fn allows(&self, load: Load) -> bool {
        let average = self.average;
        average.is_none_or(|average| average.allows(load.outstanding, load.weight))
    }

    fn verdict(&self, index: usize) -> Verdict {
        self.backend(index).stats.verdict(self.now)
    }

    /// Examines all candidates, after the random draws yielded no slot: a free candidate may not
    /// have been drawn.
    fn choose_of_all(&self, random: &mut Random) -> Choice {
        let mut select = || self.select_best(random);
        select().or_else(select).unwrap_or(Choice::Busy)
    }

    /// Selects the best of all candidates. `None` if another request acquired the last slot of that
    /// candidate.
    fn select_best(&self, random: &mut Random) -> Option<Choice> {
        // Examine all candidates, not only `route.up`: a backend may have come up since the route
        // was built.
        let count = self.route.candidates.len();
        let start = random.below(u32::try_from(count).unwrap_or(u32::MAX)) as usize;
        let mut best: Option<(usize, Load)> = None;
        let mut best_ejected: Option<(usize, Load)> = None;
        let (mut is_busy, mut is_up) = (false, false);
        for index in (start..count).chain(0..start) {
            let (load, best) = match self.availability(index) {
                Availability::TrialDue => {
                    if let Some(slot) = self.acquire(index) {
                        return Some(Choice::Slot(slot));
                    }
                    is_up = true;
                    continue;
                }
                Availability::Free(load) => (load, &mut best),
                Availability::Ejected(load) => (load, &mut best_ejected),
                Availability::Full => {
                    is_busy = true;
                    continue;
                }
                Availability::EjectedAndFull => {
                    is_up = true;
                    continue;
                }
                Availability::Unavailable => continue,
            };
            if best.is_none_or(|(_, before)| pick::is_better(load, before)) {
                *best = Some((index, load));
            }
        }
        // Use an ejected backend only if no healthy backend is merely at capacity.
        let best = match best {
            None if !is_busy => best_ejected,
            best => best,
        };
        match best {
            Some((index, _)) => self.acquire(index).map(Choice::Slot),
            None if is_busy || is_up => Some(Choice::Busy),
            None => Some(Choice::Down),
        }
    }

    fn choose_only(&self, index: usize) -> Choice {
        match self.availability(index) {
            Availability::Unavailable => Choice::Down,
            Availability::Full | Availability::EjectedAndFull => Choice::Busy,
            Availability::Free(_) | Availability::Ejected(_) | Availability::TrialDue => {
                // Send the request even if the backend is ejected and its trial is running: no
                // other backend can serve the request.
                self.backend(index).stats.claim_trial(self.now);
                let reason = self.reason(ChoiceReason::NoModel);
                Slot::acquire(self.route, index, reason).map_or(Choice::Busy, Choice::Slot)
            }
        }
    }

    fn choose_first(&self) -> Choice {
        // A request without a model may name an object that only the first backend stores. That backend is
        // therefore used even while it is ejected.
        let is_up = |index: &usize| self.availability(*index) != Availability::Unavailable;
        let first = (0..self.route.candidates.len()).find(is_up);
        first.map_or(Choice::Down, |index| self.choose_only(index))
    }

    fn backend(&self, index: usize) -> &Arc<Backend> {
        self.route.backend(index)
    }
}
