//! Commit groups: producers that wait for the same sync.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::error::Error;

/// Producers that wait for one sync, which is pending, running or done.
///
/// Waiting producers hold no lock and need none when they are woken. A lock would release them one
/// by one.
#[derive(Debug, Default)]
pub(super) struct CommitGroup {
    has_leader: AtomicBool,
    /// Set after `result`, when the sync of this group has ended. The leader of the next group
    /// waits for `done`, so that producers that `result` has woken can join the next group.
    done: OnceLock<()>,
    result: OnceLock<Result<(), Error>>,
}

impl CommitGroup {
    /// Returns true for the first caller, which becomes the leader and syncs the records of all
    /// producers.
    pub(super) fn try_lead(&self) -> bool {
        !self.has_leader.swap(true, Ordering::Relaxed)
    }

    /// Sets the result and wakes the producers. Further calls have no effect. The leader of the
    /// next group is woken last, so that producers that are woken before it can join its group.
    pub(super) fn complete(&self, result: Result<(), Error>) {
        let _ = self.result.set(result);
        let _ = self.done.set(());
    }

    /// Waits until the sync of this group has ended and its producers were woken.
    pub(super) fn wait_until_done(&self) {
        self.done.wait();
    }

    /// Waits for the sync of this group, and returns its result.
    pub(super) fn wait_for_result(&self) -> Result<(), Error> {
        self.result.wait().clone()
    }
}
