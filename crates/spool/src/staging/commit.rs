//! Those who wait for the same sync.

use std::sync::{Arc, Condvar, MutexGuard, OnceLock, PoisonError};

use super::State;
use crate::error::Error;

/// One sync, to come or done.
#[derive(Debug, Default)]
pub(super) struct Commit {
    outcome: OnceLock<Result<(), Error>>,
    /// Always used with the lock of the state.
    changed: Condvar,
}

impl Commit {
    pub(super) fn outcome(&self) -> Option<Result<(), Error>> {
        self.outcome.get().cloned()
    }

    /// Tells everyone who waits. The first outcome stands.
    pub(super) fn settle(&self, outcome: Result<(), Error>) {
        let _ = self.outcome.set(outcome);
        self.changed.notify_all();
    }

    /// Wakes one who waits, so that it does the work.
    pub(super) fn wake_one(&self) {
        self.changed.notify_one();
    }

    pub(super) fn wait<'a>(
        self: &Arc<Self>,
        state: MutexGuard<'a, State>,
    ) -> MutexGuard<'a, State> {
        let waiting = self.changed.wait(state);
        waiting.unwrap_or_else(PoisonError::into_inner)
    }
}
