//! Those who wait for the same sync.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::error::Error;

/// One sync, to come or done.
///
/// Whoever waits here holds no lock, and needs none when it is woken: many are woken at once, and a
/// lock would let them through one by one.
#[derive(Debug, Default)]
pub(super) struct CommitGroup {
    is_led: AtomicBool,
    /// The disk is free for the next one.
    over: OnceLock<()>,
    outcome: OnceLock<Result<(), Error>>,
}

impl CommitGroup {
    /// `true` for the first who asks: it takes everyone's records to the disk.
    pub(super) fn lead(&self) -> bool {
        !self.is_led.swap(true, Ordering::Relaxed)
    }

    /// Tells everyone who waits. The leader of the next one comes last: those who are woken before
    /// it may have another record for it to take along. The first outcome stands.
    pub(super) fn settle(&self, outcome: Result<(), Error>) {
        let _ = self.outcome.set(outcome);
        let _ = self.over.set(());
    }

    pub(super) fn until_over(&self) {
        self.over.wait();
    }

    pub(super) fn outcome(&self) -> Result<(), Error> {
        self.outcome.wait().clone()
    }
}
