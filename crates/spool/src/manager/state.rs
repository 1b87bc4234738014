//! Delivery state of a batch: `{batch}.state.json` beside it. The batch itself never changes.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::journal::decode;
use crate::time::Moment;

pub(crate) const VERSION: u32 = 1;
/// Maximum time between two attempts that is added to `tried_for`. Without this limit, a clock that
/// jumps or a machine that was off would move a batch to `failed/` too early.
const MAX_ATTEMPT_GAP: Duration = Duration::from_secs(24 * 3600);

/// State of the attempts to deliver a batch.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "the fields are those of the file format"
)]
pub(crate) struct DeliveryState {
    pub(crate) version: u32,
    pub(crate) attempts: u32,
    /// Number of runs in which the batch failed.
    pub(crate) rounds: u32,
    /// Id of the last run in which the batch failed. Several failed attempts in one run count as
    /// one.
    pub(crate) run: Option<Uuid>,
    /// True if an attempt has begun and its end is not stored. After a crash, the destination may
    /// have the batch.
    pub(crate) in_flight: bool,
    /// True if the destination may have the batch, because the result of an attempt is unknown.
    /// Such a batch is never split, since its records could be counted twice.
    pub(crate) unknown: bool,
    /// True if the batch is being split and must not be sent any more.
    pub(crate) splitting: bool,
    /// Names of the halves while the batch is being split.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) halves: Vec<String>,
    /// True if the batch is a piece of a rejected batch whose records are known to be at fault,
    /// because the destination accepts other records. The piece may be split down to single
    /// records.
    #[serde(default, skip_serializing_if = "is_false")]
    pub(crate) proven: bool,
    /// Name of the bisected batch that this piece came from, if the destination rejected the piece
    /// too. Once records of that batch are known to be at fault, all its pieces may be split.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) origin: Option<String>,
    pub(crate) first_attempt: Option<Moment>,
    pub(crate) last_attempt: Option<Moment>,
    /// Time for which the batch has been tried, in seconds. With `rounds`, this time decides when
    /// the batch is given up and moves to `failed/`.
    pub(crate) tried_for: u64,
    /// Start of the wait before the next attempt. The batch is sent again `waits_for` milliseconds
    /// later.
    pub(crate) waits_since: Option<Moment>,
    /// Duration of the wait before the next attempt, in milliseconds.
    pub(crate) waits_for: u64,
    pub(crate) last_error: Option<String>,
}

#[expect(
    clippy::trivially_copy_pass_by_ref,
    reason = "serde calls the function with a reference"
)]
fn is_false(value: &bool) -> bool {
    !value
}

impl Default for DeliveryState {
    fn default() -> Self {
        Self {
            version: VERSION,
            attempts: 0,
            rounds: 0,
            run: None,
            in_flight: false,
            unknown: false,
            splitting: false,
            halves: Vec::new(),
            proven: false,
            origin: None,
            first_attempt: None,
            last_attempt: None,
            tried_for: 0,
            waits_since: None,
            waits_for: 0,
            last_error: None,
        }
    }
}

impl DeliveryState {
    /// Parses a state file and checks its checksum and version.
    pub(crate) fn decode(bytes: &[u8]) -> Result<Self, String> {
        let state: Self = decode(bytes)?;
        if state.version == VERSION {
            Ok(state)
        } else {
            Err(format!(
                "the file has version {}, not {VERSION}",
                state.version
            ))
        }
    }

    /// State of a batch whose state file is damaged: an attempt may have been made.
    pub(crate) fn lost() -> Self {
        Self {
            unknown: true,
            last_error: Some("the state file of the batch is damaged".to_owned()),
            ..Self::default()
        }
    }

    /// Begins an attempt.
    pub(crate) fn begin(&mut self, now: Moment) {
        if let Some(last) = self.last_attempt {
            let gap = now.since(last).min(MAX_ATTEMPT_GAP);
            self.tried_for = self.tried_for.saturating_add(gap.as_secs());
        }
        self.attempts = self.attempts.saturating_add(1);
        self.first_attempt.get_or_insert(now);
        self.last_attempt = Some(now);
        self.in_flight = true;
    }

    /// Ends an attempt to deliver the batch that did not succeed, and stores its error.
    pub(crate) fn end(&mut self, error: &str) {
        self.in_flight = false;
        self.last_error = Some(error.to_owned());
    }

    /// Counts this run as one in which the batch failed.
    pub(crate) fn count_round(&mut self, run: Uuid) {
        if self.run != Some(run) {
            self.run = Some(run);
            self.rounds = self.rounds.saturating_add(1);
        }
    }

    pub(crate) fn wait(&mut self, now: Moment, duration: Duration) {
        self.waits_since = Some(now);
        self.waits_for = u64::try_from(duration.as_millis()).unwrap_or(u64::MAX);
    }

    /// Returns the remaining wait. It never exceeds the stored duration, also if the clock goes
    /// back.
    pub(crate) fn wait_left(&self, now: Moment) -> Duration {
        wait_left(self.waits_since, self.waits_for, now)
    }

    /// True if the clock went back since the wait began. The caller must begin the wait again,
    /// because the remaining wait does not shrink until the clock passes its start.
    pub(crate) fn has_future_start(&self, now: Moment) -> bool {
        self.waits_since.is_some_and(|since| since > now)
    }

    /// True if the destination may have the batch.
    pub(crate) fn is_unknown(&self) -> bool {
        self.unknown || self.in_flight
    }
}

/// Returns how much is left of a wait of `millis` that began at `since`. If the clock went back, no
/// time has passed.
pub(crate) fn wait_left(since: Option<Moment>, millis: u64, now: Moment) -> Duration {
    let Some(since) = since else {
        return Duration::ZERO;
    };
    Duration::from_millis(millis).saturating_sub(now.since(since))
}
