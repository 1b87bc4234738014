//! Batches that the destination rejects: records are at fault, or the destination is.
//!
//! A destination that has accepted a batch since it last rejected one is trusted: the batch is
//! split until the rejected records stand alone in `failed/`, with all pieces of it that an earlier
//! run left. Otherwise one batch is bisected to a
//! single record. If the destination accepts any part, it is trusted again. If not, nothing goes
//! to `failed/`: everything stays pending and delivery pauses. The next run bisects another batch,
//! since batches that were tried least often come first.

use std::time::Duration;

use super::attempt::AttemptResult;
use super::courier::{Courier, NextStep};
use crate::batch::Batch;
use crate::error::Error;
use crate::manager::{DeliveryState, Standing};

/// The pause after the first batch of which no part was accepted; it doubles ...
const FIRST_PAUSE: Duration = Duration::from_secs(30);
/// ... up to this.
const LONGEST_PAUSE: Duration = Duration::from_secs(600);

/// Evidence that rejected records, and not the destination, are at fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RecordFault {
    /// None: the standing of the destination decides.
    Unproven,
    /// The batch is a piece of one that a trusted destination rejected, or of which it has
    /// accepted a part: it is split to the end, also after a restart.
    Proven,
}

/// A batch that the destination will not accept as it is.
pub(super) struct RejectedBatch {
    pub(super) batch: Batch,
    pub(super) state: DeliveryState,
    pub(super) said: String,
    /// The batch, and perhaps none of its records, is too large.
    pub(super) is_too_large: bool,
}

impl RejectedBatch {
    /// The name of the batch that it is a piece of, or its own.
    fn origin(&self) -> String {
        let origin = self.state.origin.clone();
        origin.unwrap_or_else(|| self.batch.file_name())
    }
}

impl Courier<'_> {
    pub(super) fn handle_rejection(&mut self, refused: RejectedBatch) -> Result<NextStep, Error> {
        let origin = refused.origin();
        let is_trusted = refused.state.proven
            || self.standing == Standing::Accepts
            || self.trusted_origin.as_ref() == Some(&origin);
        if refused.state.unknown {
            self.note_rejection()?;
            return self.fail_as_ambiguous(&refused, is_trusted);
        }
        if refused.is_too_large
            && let Some(halves) = self.split(&refused)?
        {
            // Halving it says nothing about its records.
            let trust = if refused.state.proven {
                RecordFault::Proven
            } else {
                RecordFault::Unproven
            };
            return Ok(NextStep::SendPieces(halves.into(), trust));
        }
        self.note_rejection()?;
        if !is_trusted {
            return self.bisect(refused);
        }
        self.trusted_origin = Some(origin);
        self.end_pause()?;
        if let Some(halves) = self.split(&refused)? {
            return Ok(NextStep::SendPieces(halves.into(), RecordFault::Proven));
        }
        self.fail(&refused.batch, &refused.state, &refused.said)?;
        Ok(NextStep::Continue)
    }

    /// It is never split: its halves would have other keys.
    fn fail_as_ambiguous(
        &mut self,
        refused: &RejectedBatch,
        is_trusted: bool,
    ) -> Result<NextStep, Error> {
        let said = &refused.said;
        let why = format!("ambiguous: the destination may have it; it said: {said}");
        self.fail(&refused.batch, &refused.state, &why)?;
        if is_trusted {
            self.end_pause()?;
            return Ok(NextStep::Continue);
        }
        // One for each run, so that a destination which rejects everything does not empty the spool.
        self.pause_for_rejections(said)
    }

    /// Sends smaller and smaller parts of a batch until one is accepted or a single record is
    /// rejected. Both halves are sent each time, so that one bad record does not look like a bad
    /// destination.
    fn bisect(&mut self, refused: RejectedBatch) -> Result<NextStep, Error> {
        let origin = refused.origin();
        let mut rejected = refused;
        let mut left = Vec::new();
        loop {
            let Some(halves) = self.split(&rejected)? else {
                let name = rejected.batch.file_name();
                self.store.set_state(&name, &rejected.state)?;
                return self.pause_for_rejections(&rejected.said);
            };
            let mut next = None;
            for (index, name) in halves.iter().enumerate() {
                if self.watch.cancel.is_cancelled() {
                    return Ok(NextStep::Stop);
                }
                match self.attempt(name, RecordFault::Unproven)? {
                    AttemptResult::Accepted => {
                        left.extend(
                            halves
                                .into_iter()
                                .enumerate()
                                .filter_map(|(other, name)| (other != index).then_some(name)),
                        );
                        return Ok(NextStep::SendPieces(left, RecordFault::Proven));
                    }
                    AttemptResult::Rejected(mut half) => {
                        half.state.origin = Some(origin.clone());
                        self.store.set_state(name, &half.state)?;
                        if next.is_none() {
                            next = Some(half);
                        } else {
                            left.push(name.clone());
                        }
                    }
                    AttemptResult::Other(next) => return Ok(next),
                }
            }
            let Some(half) = next else {
                return Ok(NextStep::Continue);
            };
            rejected = *half;
        }
    }

    fn split(&mut self, refused: &RejectedBatch) -> Result<Option<[String; 2]>, Error> {
        let halves = self.store.split(&refused.batch, &refused.state)?;
        self.done.split += u64::from(halves.is_some());
        Ok(halves)
    }

    fn pause_for_rejections(&mut self, said: &str) -> Result<NextStep, Error> {
        let probes = match self.standing {
            Standing::Rejects { probes } => probes,
            Standing::Unknown | Standing::Accepts => 0,
        };
        self.set_standing(Standing::Rejects {
            probes: probes.saturating_add(1),
        })?;
        let long = FIRST_PAUSE.saturating_mul(1 << probes.min(16));
        let said = format!("no part of a batch was accepted: {said}");
        self.pause_for_a_person(said, long.min(LONGEST_PAUSE), probes == 0, true)
    }

    fn note_rejection(&mut self) -> Result<(), Error> {
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
