//! Progress reports, cancellation and time for long operations.

use std::fmt;
use std::time::{Duration, SystemTime};

use crate::cancel::Cancel;
use crate::time::Moment;

/// Progress report of a long operation.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Progress {
    /// Records went into batches.
    #[non_exhaustive]
    Consolidated {
        /// Number of records that went into batches since the last report.
        records: u64,
    },
    /// Records were delivered or archived.
    #[non_exhaustive]
    Delivered {
        /// Number of records that were delivered or archived since the last report.
        records: u64,
    },
    /// Delivery waits.
    #[non_exhaustive]
    Waiting {
        /// Time at which delivery continues, by the clock of this machine.
        until: SystemTime,
        /// Reason for the wait: the last error, or the response of the destination.
        why: String,
    },
    /// Bytes were verified.
    #[non_exhaustive]
    Checked {
        /// Number of bytes in files of the data directory that `verify` has checked since the last
        /// report.
        bytes: u64,
    },
}

/// Receives the progress of a long operation, and can cancel it.
pub struct Watch<'a> {
    /// Cancels the operation.
    pub cancel: Cancel,
    /// Function that receives every progress report.
    pub progress: &'a (dyn Fn(Progress) + 'a),
}

impl Watch<'_> {
    /// Returns a watch that ignores progress and is never cancelled.
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

/// Clock of a run. Tests replace it.
pub(crate) trait Clock {
    fn now(&self) -> Moment;
    /// Waits for the duration or until the run is cancelled.
    fn wait(&self, cancel: &Cancel, duration: Duration);
}

/// Clock of this machine.
pub(crate) struct RealClock;

impl Clock for RealClock {
    fn now(&self) -> Moment {
        SystemTime::now().into()
    }

    fn wait(&self, cancel: &Cancel, duration: Duration) {
        cancel.wait(duration);
    }
}
