//! Delivery: every batch to its destination, exactly once as far as the destination lets us know.
//!
//! Before an attempt it is noted that one is made; after it, what came of it. So after a crash it is
//! known that the destination may have a batch, and such a batch is only ever sent again as it was.

mod attempt;
mod backoff;
mod courier;
mod lock;
mod rejection;
mod sink;
mod watch;

use std::time::Duration;

pub(crate) use courier::{archive, deliver};
pub use lock::{DeliveryLock, RunError};
pub use sink::{Answer, Sink};
pub(crate) use watch::{Clock, RealClock};
pub use watch::{Progress, Watch};

use crate::manager::Pause;

/// How delivery works.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct DeliveryOptions {
    /// A batch is given up when it failed in so many runs...
    pub give_up_rounds: u32,
    /// ... and has been tried for so long.
    pub give_up_after: Duration,
    /// The longest wait, whatever the destination asks for.
    pub max_wait: Duration,
    /// Try batches that would wait after a failure. What the destination asked for still holds.
    pub ignore_backoff: bool,
}

impl Default for DeliveryOptions {
    fn default() -> Self {
        Self {
            give_up_rounds: 10,
            give_up_after: Duration::from_secs(7 * 24 * 3600),
            max_wait: Duration::from_secs(3600),
            ignore_backoff: false,
        }
    }
}

/// What came of a delivery.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Delivered {
    /// Batches that the destination has now.
    pub batches: u64,
    /// The records in them.
    pub records: u64,
    /// Batches that were split to find what is wrong in them.
    pub split: u64,
    /// Records that were put into `failed/`.
    pub failed: u64,
    /// Batches among those that the destination may have.
    pub ambiguous: u64,
    /// Batches that are damaged, and were put into `failed/`.
    pub damaged: u64,
    /// Batches that still wait.
    pub waiting: u64,
    /// Nothing is sent for now.
    pub paused: Option<Pause>,
    /// The destination takes nothing for now: the run ended before everything was tried.
    pub is_stopped: bool,
    /// What the last failure was.
    pub last_error: Option<String>,
}
