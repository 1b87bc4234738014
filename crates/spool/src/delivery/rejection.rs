//! Batches that the destination rejects: records are at fault, or the destination is.
//!
//! A destination that has accepted a batch since it last rejected one is trusted. A batch that it
//! rejects is split until the rejected records stand alone in `failed/`. Pieces of the batch that
//! an earlier run left are split too. If the destination is not trusted, one batch is bisected down
//! to a single record. If the destination accepts any part, it is trusted again. If not, no record
//! goes to `failed/`: everything stays pending and delivery pauses. The next run bisects another
//! batch, since batches with the fewest attempts come first.

use std::time::Duration;

use super::attempt::{AttemptResult, PauseReason};
use super::courier::{Courier, NextStep};
use crate::batch::Batch;
use crate::error::Error;
use crate::manager::{DeliveryState, Standing};

/// Pause after the first batch of which no part was accepted. The pause doubles with every further
/// such batch, up to [`MAX_PAUSE`].
const FIRST_PAUSE: Duration = Duration::from_secs(30);
/// Maximum pause after batches of which no part was accepted.
const MAX_PAUSE: Duration = Duration::from_secs(600);

/// Evidence that rejected records, and not the destination, are at fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RecordFault {
    /// No evidence against the records. If the destination last accepted a batch, a rejected batch
    /// is split; otherwise the batch is bisected to test the destination.
    Unproven,
    /// The batch is a piece of a larger rejected batch, and the destination accepted another batch
    /// before, or another piece of the larger batch. So the piece is split down to single records,
    /// also after a restart.
    Proven,
}

/// Kind of a rejection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RejectionKind {
    /// A record in the batch is invalid.
    Invalid,
    /// The batch is too large. Its records may all be valid.
    TooLarge,
}

/// A batch that the destination will not accept as it is.
pub(super) struct RejectedBatch {
    pub(super) batch: Batch,
    pub(super) state: DeliveryState,
    pub(super) message: String,
    pub(super) kind: RejectionKind,
}

impl RejectedBatch {
    /// Returns the name of the bisected batch that this batch is a rejected piece of, or else the
    /// batch's own name. Once records of the bisected batch are known to be at fault, all its
    /// pieces may be split.
    fn origin(&self) -> String {
        let origin = self.state.origin.clone();
        origin.unwrap_or_else(|| self.batch.file_name())
    }
}

impl Courier<'_> {
    pub(super) fn handle_rejection(&mut self, rejected: RejectedBatch) -> Result<NextStep, Error> {
        let origin = rejected.origin();
        let is_trusted = rejected.state.proven
            || self.standing == Standing::Accepts
            || self.trusted_origin.as_ref() == Some(&origin);
        if rejected.state.unknown {
            self.store_rejection()?;
            self.fail_as_ambiguous(&rejected)?;
            if is_trusted {
                self.end_pause()?;
                return Ok(NextStep::Continue);
            }
            // At most one batch per run fails as ambiguous. Otherwise a destination that rejects
            // everything could move every pending batch to `failed/` in one run.
            return self.pause_for_rejections(&rejected.message);
        }
        if rejected.kind == RejectionKind::TooLarge
            && let Some(halves) = self.split(&rejected)?
        {
            // The destination rejected the batch as too large, which proves nothing about its
            // records. So the halves have only the evidence that the batch already had.
            let fault = if rejected.state.proven {
                RecordFault::Proven
            } else {
                RecordFault::Unproven
            };
            return Ok(NextStep::SendPieces(halves.into(), fault));
        }
        self.store_rejection()?;
        if !is_trusted {
            return self.bisect(rejected);
        }
        self.trusted_origin = Some(origin);
        self.end_pause()?;
        if let Some(halves) = self.split(&rejected)? {
            return Ok(NextStep::SendPieces(halves.into(), RecordFault::Proven));
        }
        self.fail(&rejected.batch, &rejected.state, &rejected.message)?;
        Ok(NextStep::Continue)
    }

    /// Fails a batch that the destination may have from an earlier attempt. It is never split: its
    /// halves would have other keys, and the destination could count their records twice.
    fn fail_as_ambiguous(&mut self, rejected: &RejectedBatch) -> Result<(), Error> {
        let message = &rejected.message;
        let reason =
            format!("ambiguous: the destination may have the batch; last error: {message}");
        self.fail(&rejected.batch, &rejected.state, &reason)
    }

    /// Sends smaller and smaller parts of a batch until one is accepted or a single record is
    /// rejected. Both halves are sent each time. Otherwise one bad record would look like a
    /// destination that rejects everything.
    fn bisect(&mut self, mut rejected: RejectedBatch) -> Result<NextStep, Error> {
        let origin = rejected.origin();
        let mut remaining = Vec::new();
        loop {
            let Some(halves) = self.split(&rejected)? else {
                let name = rejected.batch.file_name();
                self.store.set_state(&name, &rejected.state)?;
                return self.pause_for_rejections(&rejected.message);
            };
            let mut rejected_half = None;
            for (index, name) in halves.iter().enumerate() {
                if self.watch.cancel.is_cancelled() {
                    return Ok(NextStep::Stop);
                }
                match self.attempt(name, RecordFault::Unproven)? {
                    AttemptResult::Accepted => {
                        remaining.extend(
                            halves
                                .into_iter()
                                .enumerate()
                                .filter_map(|(other, name)| (other != index).then_some(name)),
                        );
                        return Ok(NextStep::SendPieces(remaining, RecordFault::Proven));
                    }
                    AttemptResult::Rejected(mut half) => {
                        half.state.origin = Some(origin.clone());
                        self.store.set_state(name, &half.state)?;
                        if rejected_half.is_none() {
                            rejected_half = Some(half);
                        } else {
                            remaining.push(name.clone());
                        }
                    }
                    AttemptResult::Undecided(next) => return Ok(next),
                }
            }
            let Some(half) = rejected_half else {
                return Ok(NextStep::Continue);
            };
            rejected = *half;
        }
    }

    fn split(&mut self, rejected: &RejectedBatch) -> Result<Option<[String; 2]>, Error> {
        let halves = self.store.split(&rejected.batch, &rejected.state)?;
        self.done.split += u64::from(halves.is_some());
        Ok(halves)
    }

    fn pause_for_rejections(&mut self, message: &str) -> Result<NextStep, Error> {
        let probes = match self.standing {
            Standing::Rejects { probes } => probes,
            Standing::Unknown | Standing::Accepts => 0,
        };
        self.set_standing(Standing::Rejects {
            probes: probes.saturating_add(1),
        })?;
        let duration = FIRST_PAUSE.saturating_mul(1 << probes.min(16));
        let message = format!("no part of a batch was accepted: {message}");
        let reason = PauseReason::RejectsAll { probes };
        self.pause_delivery(reason, message, duration.min(MAX_PAUSE))
    }

    /// Stores that the destination has rejected a batch, unless this is stored already.
    fn store_rejection(&mut self) -> Result<(), Error> {
        match self.standing {
            Standing::Rejects { .. } => Ok(()),
            Standing::Unknown | Standing::Accepts => {
                self.set_standing(Standing::Rejects { probes: 0 })
            }
        }
    }

    pub(super) fn set_standing(&mut self, standing: Standing) -> Result<(), Error> {
        if self.standing != standing {
            self.store.set_standing(self.sink.name(), standing)?;
            self.standing = standing;
        }
        Ok(())
    }
}
