//! Delivery: every batch goes to its destination once, as far as the destination reports its
//! outcome.
//!
//! The state of a batch is stored before each attempt and after it. So a batch that the destination
//! may have is known after a crash. Such a batch is sent again only with the same bytes and key.

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

/// Options of delivery.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct DeliveryOptions {
    /// Minimum number of runs in which a batch has failed before it moves to `failed/`.
    pub give_up_rounds: u32,
    /// Minimum time for which a batch has been tried before it moves to `failed/`.
    pub give_up_after: Duration,
    /// Maximum wait between two attempts for a batch, and maximum pause of delivery, also if the
    /// destination asks for a longer one.
    pub max_wait: Duration,
    /// True to retry at once instead of after the backoff. Waits that the destination asked for
    /// still apply.
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

/// Result of delivery.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Delivered {
    /// Number of delivered batches.
    pub batches: u64,
    /// Number of delivered records.
    pub records: u64,
    /// Number of batches that were split to isolate rejected records.
    pub split: u64,
    /// Number of records that moved to `failed/`.
    pub failed: u64,
    /// Number of batches that moved to `failed/` and that the destination may have.
    pub ambiguous: u64,
    /// Number of damaged batches, which moved to `failed/`.
    pub damaged: u64,
    /// Number of batches that are still pending when the run ends.
    pub waiting: u64,
    /// Pause of delivery, if one is in effect.
    pub paused: Option<Pause>,
    /// True if the destination accepts nothing for now, and the run ended before every batch was
    /// tried.
    pub is_stopped: bool,
    /// Last error.
    pub last_error: Option<String>,
}
