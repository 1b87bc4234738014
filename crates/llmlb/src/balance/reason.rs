//! Reasons for the selection of a backend, and the candidates that were compared. Both are part of the
//! explanation of a request and change no decision.

use super::breaker::Verdict;
use super::choose::Selection;
use super::clock::Moment;
use super::route::Route;
use super::{BackendId, SelectHints};

/// Maximum number of candidates in a [`Comparison`]. Further ones are only counted.
const MAX_SHOWN: usize = 8;

/// The reason for which a request was sent to a backend.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ChoiceReason {
    /// No other backend serves the model.
    OnlyCandidate,
    /// The backend issued an id that the request names.
    IdOwner,
    /// The request names no model, and the backend is the first one of the configuration that is up.
    NoModel,
    /// The backend received the beginning of the prompt before.
    Affinity,
    /// The backend had the least load of the candidates that were drawn.
    Load,
    /// The trial of an ejected backend was due.
    Trial,
    /// All candidates were ejected.
    Ejected,
    /// The request waited, and this backend was the first one with a free slot.
    Queue,
    /// An earlier attempt at another backend failed.
    FailOver,
    /// All candidates were down, and this one had refused its last connection.
    LastResort,
}

impl ChoiceReason {
    /// All reasons, in the order of the documentation.
    pub(crate) const ALL: [Self; 10] = [
        Self::OnlyCandidate,
        Self::IdOwner,
        Self::NoModel,
        Self::Affinity,
        Self::Load,
        Self::Trial,
        Self::Ejected,
        Self::Queue,
        Self::FailOver,
        Self::LastResort,
    ];

    /// Word of the reason in usage records, the access log and metrics.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::OnlyCandidate => "only_candidate",
            Self::IdOwner => "id_owner",
            Self::NoModel => "no_model",
            Self::Affinity => "affinity",
            Self::Load => "load",
            Self::Trial => "trial",
            Self::Ejected => "ejected",
            Self::Queue => "queue",
            Self::FailOver => "fail_over",
            Self::LastResort => "last_resort",
        }
    }

    /// Describes the reason in a sentence about the backend.
    pub(crate) fn sentence(self) -> &'static str {
        match self {
            Self::OnlyCandidate => "no other backend serves the model",
            Self::IdOwner => "it issued an id that the request names",
            Self::NoModel => {
                "the request names no model, and it is the first backend of the configuration that is up"
            }
            Self::Affinity => "it received the beginning of the prompt before",
            Self::Load => "it had the least load of the candidates that were drawn",
            Self::Trial => "it was ejected, and its trial was due",
            Self::Ejected => "all candidates were ejected",
            Self::Queue => {
                "the request waited in the queue, and it was the first backend with a free slot"
            }
            Self::FailOver => "an earlier attempt at another backend failed",
            Self::LastResort => {
                "all candidates were down, and it may be back: it had refused its last connection"
            }
        }
    }

    /// Returns the reason with this [`name`](Self::name).
    pub(crate) fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|reason| reason.name() == name)
    }
}

/// State of a candidate when a backend was selected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CandidateState {
    Healthy,
    Ejected,
    /// The backend is at `max_concurrent`.
    Full,
    Down,
    /// The request failed there before.
    Tried,
    /// The backend does not serve the endpoint.
    LacksEndpoint,
}

impl CandidateState {
    /// Word of the state in explanations.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Healthy => "healthy",
            Self::Ejected => "ejected",
            Self::Full => "full",
            Self::Down => "down",
            Self::Tried => "tried",
            Self::LacksEndpoint => "lacks_endpoint",
        }
    }
}

/// A candidate when a backend was selected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ComparedBackend {
    pub(crate) id: BackendId,
    /// Requests in progress, without the request itself.
    pub(crate) in_flight: u32,
    /// Average time until a response begins, in microseconds; 0 if it is not known.
    pub(crate) latency_us: u32,
    pub(crate) state: CandidateState,
}

/// The candidates of a request when its backend was selected. A copy of figures: it keeps no backend and
/// no route alive.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Comparison {
    /// Number of all candidates.
    pub(crate) total: u32,
    /// The selected backend and up to seven others, in the order of their ids.
    shown: [Option<ComparedBackend>; MAX_SHOWN],
}

impl Comparison {
    pub(crate) fn shown(&self) -> impl Iterator<Item = &ComparedBackend> {
        self.shown.iter().flatten()
    }

    /// Notes the candidates of a route at the selection of the candidate `chosen`, whose slot is acquired.
    pub(super) fn note(
        &mut self,
        route: &Route,
        chosen: usize,
        hints: &SelectHints<'_>,
        tried: &[BackendId],
        now: Moment,
    ) {
        let count = route.candidates.len();
        self.total = u32::try_from(count).unwrap_or(u32::MAX);
        // A window of candidates that has the selected one.
        let first = chosen.saturating_sub(MAX_SHOWN - 1);
        let end = (first + MAX_SHOWN).min(count);
        for (place, shown) in self.shown.iter_mut().enumerate() {
            let index = first + place;
            *shown = (index < end).then(|| {
                let backend = route.backend(index);
                let stats = &backend.stats;
                let outstanding = stats.outstanding();
                let state = if index == chosen {
                    CandidateState::Healthy
                } else if tried.contains(&backend.id) {
                    CandidateState::Tried
                } else if !stats.is_up() {
                    CandidateState::Down
                } else if hints.endpoint.is_some_and(|key| backend.lacks(key, now)) {
                    CandidateState::LacksEndpoint
                } else if outstanding >= backend.max_slots() {
                    CandidateState::Full
                } else {
                    CandidateState::Healthy
                };
                let is_ejected =
                    matches!(stats.verdict(now), Verdict::Ejected(_) | Verdict::TrialDue);
                ComparedBackend {
                    id: backend.id,
                    in_flight: outstanding.saturating_sub(u32::from(index == chosen)),
                    latency_us: stats.latency(now),
                    state: match state {
                        CandidateState::Healthy if is_ejected => CandidateState::Ejected,
                        state => state,
                    },
                }
            });
        }
    }
}

impl Selection<'_> {
    /// Returns the reason for the selection of a candidate: `by_state`, unless the request leaves no choice.
    pub(super) fn reason(&self, by_state: ChoiceReason) -> ChoiceReason {
        if !self.tried.is_empty() {
            ChoiceReason::FailOver
        } else if self.only.is_some() {
            ChoiceReason::IdOwner
        } else if self.route.candidates.len() == 1 {
            ChoiceReason::OnlyCandidate
        } else if self.route.is_in_order() {
            ChoiceReason::NoModel
        } else {
            by_state
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_reason_has_a_name_of_its_own() {
        for reason in ChoiceReason::ALL {
            assert_eq!(ChoiceReason::from_name(reason.name()), Some(reason));
        }
        assert_eq!(ChoiceReason::from_name("unknown"), None);
    }
}
