//! Whoever watches long work, and may end it.

use std::fmt;
use std::time::{Duration, SystemTime};

use crate::cancel::Cancel;
use crate::time::Moment;

/// How far long work has come.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Progress {
    /// So many more records went into batches.
    #[non_exhaustive]
    Consolidated {
        /// Since the last report.
        records: u64,
    },
    /// So many more records were delivered or archived.
    #[non_exhaustive]
    Delivered {
        /// Since the last report.
        records: u64,
    },
    /// Nothing happens until then.
    #[non_exhaustive]
    Waiting {
        /// If the clock is right.
        until: SystemTime,
        /// What the destination said.
        why: String,
    },
    /// So many more bytes were checked.
    #[non_exhaustive]
    Checked {
        /// Since the last report.
        bytes: u64,
    },
}

/// Hears how far long work has come, and ends it early.
pub struct Watch<'a> {
    /// Ends the work.
    pub cancel: Cancel,
    /// Is told.
    pub progress: &'a (dyn Fn(Progress) + 'a),
}

impl Watch<'_> {
    /// Nobody watches.
    pub fn silent() -> Self {
        Self {
            cancel: Cancel::new(),
            progress: &|_| {},
        }
    }
}

impl fmt::Debug for Watch<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Watch")
            .field("cancel", &self.cancel)
            .finish_non_exhaustive()
    }
}

/// Time, or what a test makes of it.
pub(crate) trait Clock {
    fn now(&self) -> Moment;
    /// Waits. `true`: somebody wants the work to end.
    fn wait(&self, cancel: &Cancel, long: Duration) -> bool;
}

/// The time of this machine.
pub(crate) struct RealClock;

impl Clock for RealClock {
    fn now(&self) -> Moment {
        SystemTime::now().into()
    }

    fn wait(&self, cancel: &Cancel, long: Duration) -> bool {
        cancel.wait(long)
    }
}
