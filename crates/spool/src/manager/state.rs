//! How far the delivery of a batch has come: `{batch}.state.json` beside it. The batch itself never
//! changes.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::journal::decode;
use crate::time::Moment;

pub(crate) const VERSION: u32 = 1;
/// A gap between two attempts counts for at most so long: a clock that jumps, or a machine that was
/// off, must not make a batch look as if it had been tried for long.
const MOST_BETWEEN: Duration = Duration::from_secs(24 * 3600);

/// What is known of the attempts to deliver a batch.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[expect(clippy::struct_excessive_bools, reason = "fields of a file")]
pub struct DeliveryState {
    pub(crate) version: u32,
    pub(crate) attempts: u32,
    /// How many runs it failed in, and the last of them.
    pub(crate) rounds: u32,
    pub(crate) run: Option<Uuid>,
    /// An attempt has begun whose end was not noted.
    pub(crate) in_flight: bool,
    /// The destination may have it.
    pub(crate) unknown: bool,
    /// It is being split: it must not be sent any more.
    pub(crate) splitting: bool,
    /// The names of its halves while it is split.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) halves: Vec<String>,
    /// It is a piece of a batch that a trusted destination rejected: it may be split to the end.
    #[serde(default, skip_serializing_if = "is_false")]
    pub(crate) proven: bool,
    /// The batch that it is a piece of, if the whole was bisected and no part was accepted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) origin: Option<String>,
    pub(crate) first_attempt: Option<Moment>,
    pub(crate) last_attempt: Option<Moment>,
    /// For how long it has been tried, in seconds.
    pub(crate) tried_for: u64,
    /// When it was written down how long to wait, and how long that is in milliseconds.
    pub(crate) waits_since: Option<Moment>,
    pub(crate) waits_for: u64,
    pub(crate) last_error: Option<String>,
}

#[expect(
    clippy::trivially_copy_pass_by_ref,
    reason = "the signature that serde asks for"
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
    /// Reads the file of a state, and checks all that can be checked of it.
    pub(crate) fn decode(bytes: &[u8]) -> Result<Self, String> {
        let state: Self = decode(bytes)?;
        if state.version == VERSION {
            Ok(state)
        } else {
            Err(format!("its version is {}, not {VERSION}", state.version))
        }
    }

    /// What holds when the state cannot be read: an attempt may have been made.
    pub(crate) fn lost() -> Self {
        Self {
            unknown: true,
            last_error: Some("what was noted about its attempts cannot be read".to_owned()),
            ..Self::default()
        }
    }

    /// An attempt begins.
    pub(crate) fn begin(&mut self, now: Moment) {
        if let Some(last) = self.last_attempt {
            let gap = now.since(last).min(MOST_BETWEEN);
            self.tried_for = self.tried_for.saturating_add(gap.as_secs());
        }
        self.attempts = self.attempts.saturating_add(1);
        self.first_attempt.get_or_insert(now);
        self.last_attempt = Some(now);
        self.in_flight = true;
    }

    /// It ended without success.
    pub(crate) fn end(&mut self, unknown: bool, said: &str) {
        self.in_flight = false;
        self.unknown |= unknown;
        self.last_error = Some(said.to_owned());
    }

    /// It failed in this run.
    pub(crate) fn count_round(&mut self, run: Uuid) {
        if self.run != Some(run) {
            self.run = Some(run);
            self.rounds = self.rounds.saturating_add(1);
        }
    }

    pub(crate) fn wait(&mut self, now: Moment, long: Duration) {
        self.waits_since = Some(now);
        self.waits_for = u64::try_from(long.as_millis()).unwrap_or(u64::MAX);
    }

    /// How long it must still wait. Never longer than it was told to, whatever the clock does.
    pub(crate) fn wait_left(&self, now: Moment) -> Duration {
        wait_left(self.waits_since, self.waits_for, now)
    }

    /// The clock went back since the wait began: it must begin anew, or it would never end.
    pub(crate) fn is_in_the_future(&self, now: Moment) -> bool {
        self.waits_since.is_some_and(|since| since > now)
    }

    /// The destination may have it, as far as anyone knows.
    pub(crate) fn is_unknown(&self) -> bool {
        self.unknown || self.in_flight
    }
}

pub(crate) fn wait_left(since: Option<Moment>, millis: u64, now: Moment) -> Duration {
    let Some(since) = since else {
        return Duration::ZERO;
    };
    // A clock that went back says nothing: as if no time had passed.
    Duration::from_millis(millis).saturating_sub(now.since(since))
}
