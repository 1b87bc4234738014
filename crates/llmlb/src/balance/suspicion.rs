//! Responses that a client may have provoked: 500, 401, 403, and those that end early.
//!
//! One prompt can make a healthy backend respond 500, or crash, each time it is sent. These responses
//! therefore eject a backend only if three came without a success in between, and only if they
//! belong to two clients or to three different prompts.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use http::StatusCode;

use super::ClientKey;

/// Number of suspect responses since the last success that are needed to eject a backend. If all of
/// them belong to one client, as many different prompts are needed.
const EVIDENCE_NEEDED: usize = 3;

/// Evidence against a backend: a response that its client may have provoked.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Evidence {
    pub(crate) fault: Fault,
    pub(crate) client: ClientKey,
    /// Hash of the request's body, by which different prompts are counted: one prompt of one client
    /// must not eject a backend.
    pub(crate) prompt: u64,
}

/// Reason why a response counts as evidence against its backend.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// The response had this HTTP status, such as 500.
    Status(StatusCode),
    /// The backend ended the response early.
    Cut,
}

/// Evidence against one backend: its responses since the last success that a client may have
/// provoked. Three such responses eject the backend if they belong to two clients or to three
/// different prompts.
#[derive(Debug, Default)]
pub(super) struct Suspicion {
    /// Fast path: false while nothing is recorded, so that a success takes no lock.
    any: AtomicBool,
    run: Mutex<Run>,
}

/// Suspect responses since the last success.
#[derive(Debug, Default)]
struct Run {
    responses: usize,
    first_client: u64,
    has_other_client: bool,
    /// Hashes of the different prompts that got a suspect response, at most [`EVIDENCE_NEEDED`].
    /// With one or two prompts of a single client, the prompts may be the cause and not the
    /// backend.
    prompts: Vec<u64>,
    is_key_rejected: bool,
    /// True if at least one of the responses ended early. Then only a complete success clears the
    /// suspicion: a success that has only begun may end early too.
    has_cut: bool,
}

/// Result of counting one more suspect response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Suspected {
    /// True for the first suspect response since the last success, the only one that is logged.
    pub(super) is_first: bool,
    /// True if the evidence is sufficient to eject the backend.
    pub(super) is_enough: bool,
}

impl Suspicion {
    /// Counts a suspect response. All credentials of an address count as one client, so that one
    /// client cannot pose as two.
    pub(super) fn note(&self, evidence: Evidence) -> Suspected {
        let (client, prompt) = (evidence.client.address, evidence.prompt);
        let mut run = self.lock();
        run.has_cut |= evidence.fault == Fault::Cut;
        self.any.store(true, Ordering::Relaxed);
        if run.responses == 0 {
            run.first_client = client;
        }
        run.responses = run.responses.saturating_add(1);
        run.has_other_client |= run.first_client != client;
        if run.prompts.len() < EVIDENCE_NEEDED && !run.prompts.contains(&prompt) {
            run.prompts.push(prompt);
        }
        let is_backends_fault = run.has_other_client || run.prompts.len() >= EVIDENCE_NEEDED;
        Suspected {
            is_first: run.responses == 1,
            is_enough: run.responses >= EVIDENCE_NEEDED && is_backends_fault,
        }
    }

    /// Notes that the backend rejected our key. Returns true for the first rejection since the last
    /// success, so that the caller logs it once.
    pub(super) fn note_rejected_key(&self) -> bool {
        let mut run = self.lock();
        self.any.store(true, Ordering::Relaxed);
        !std::mem::replace(&mut run.is_key_rejected, true)
    }

    /// Notes that a success began. It clears error responses, but not responses that ended early, since those
    /// had begun as successes too.
    pub(super) fn note_success_began(&self) {
        self.clear_if(|run| !run.has_cut);
    }

    /// Clears the suspicion after a complete success, so that earlier evidence does not count any
    /// more.
    pub(super) fn clear(&self) {
        self.clear_if(|_| true);
    }

    fn clear_if(&self, condition: impl Fn(&Run) -> bool) {
        if self.any.load(Ordering::Relaxed) {
            let mut run = self.lock();
            if condition(&run) {
                *run = Run::default();
                self.any.store(false, Ordering::Relaxed);
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, Run> {
        self.run.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ERROR: Fault = Fault::Status(StatusCode::INTERNAL_SERVER_ERROR);

    fn note(suspicion: &Suspicion, address: u64, prompt: u64, fault: Fault) -> Suspected {
        let client = ClientKey {
            address,
            credential: 0,
        };
        suspicion.note(Evidence {
            fault,
            client,
            prompt,
        })
    }

    fn is_enough(suspicion: &Suspicion, client: u64, prompt: u64) -> bool {
        note(suspicion, client, prompt, ERROR).is_enough
    }

    #[test]
    fn one_client_with_one_prompt_is_never_enough() {
        let suspicion = Suspicion::default();
        assert!(note(&suspicion, 1, 7, ERROR).is_first);
        for number in 0..100 {
            assert_eq!(
                note(&suspicion, 1, 7 + number % 2, ERROR),
                Suspected {
                    is_first: false,
                    is_enough: false
                }
            );
        }
    }

    #[test]
    fn third_response_is_enough_for_two_clients() {
        let suspicion = Suspicion::default();
        assert!(!is_enough(&suspicion, 1, 7));
        assert!(!is_enough(&suspicion, 2, 7), "two responses");
        assert!(is_enough(&suspicion, 1, 7));
        assert!(is_enough(&suspicion, 1, 7));
    }

    #[test]
    fn third_prompt_of_one_client_is_enough() {
        let suspicion = Suspicion::default();
        for prompt in [7, 8, 8, 7] {
            assert!(!is_enough(&suspicion, 1, prompt));
        }
        assert!(is_enough(&suspicion, 1, 9));
    }

    #[test]
    fn success_clears_the_suspicion() {
        let suspicion = Suspicion::default();
        for _ in 0..10 {
            assert!(!is_enough(&suspicion, 1, 7) && !is_enough(&suspicion, 2, 8));
            suspicion.note_success_began();
        }
    }

    #[test]
    fn only_a_complete_success_clears_responses_that_ended_early() {
        let suspicion = Suspicion::default();
        for _ in 0..10 {
            for client in [1, 2] {
                assert!(!note(&suspicion, client, 7, Fault::Cut).is_enough);
                suspicion.note_success_began();
            }
            suspicion.clear();
        }
        for client in [1, 2] {
            assert!(!note(&suspicion, client, 7, Fault::Cut).is_enough);
            suspicion.note_success_began();
        }
        assert!(note(&suspicion, 1, 7, Fault::Cut).is_enough);
    }

    #[test]
    fn rejected_key_is_new_once() {
        let suspicion = Suspicion::default();
        assert!(suspicion.note_rejected_key() && !suspicion.note_rejected_key());
        suspicion.clear();
        assert!(suspicion.note_rejected_key());
    }
}
