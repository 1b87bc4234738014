//! One attempt to deliver a batch, and what is noted of it.

use std::time::Duration;

use super::backoff::backoff;
use super::courier::{Courier, MAX_WAIT_IN_RUN, NextStep};
use super::rejection::{RecordFault, RejectedBatch};
use super::{Answer, Progress};
use crate::batch::Batch;
use crate::error::Error;
use crate::manager::{DeliveryState, LoadedBatch, Pause, Standing};

/// After so many failures in a row it is not the batches: it waits between them ...
const FAILURES_TO_SLOW_DOWN: u32 = 3;
/// ... and after so many the run ends.
const FAILURES_TO_STOP: u32 = 6;
/// The shortest wait after which a destination is asked again.
const SHORTEST_PAUSE: Duration = Duration::from_secs(1);
/// How soon a destination is asked again that takes nothing from us.
const MISCONFIGURED_PAUSE: Duration = Duration::from_secs(30);

/// What came of an attempt.
pub(super) enum AttemptResult {
    Accepted,
    /// The destination will not accept the batch as it is.
    RejectedBatch(Box<RejectedBatch>),
    /// Neither: the batch waits, is gone, or the run ends.
    Other(NextStep),
}

impl Courier<'_> {
    pub(super) fn deliver_batch(
        &mut self,
        name: &str,
        trust: RecordFault,
    ) -> Result<NextStep, Error> {
        match self.attempt(name, trust)? {
            AttemptResult::Accepted => Ok(NextStep::Continue),
            AttemptResult::Rejected(refused) => {
                let state = refused.state.clone();
                let next = self.handle_rejection(*refused);
                if next.is_err() {
                    self.note_no_attempt(name, &state);
                }
                next
            }
            AttemptResult::Other(next) => Ok(next),
        }
    }

    /// Notes that no attempt is being made, after an error. Otherwise the last one would count as one
    /// of unknown outcome, although none was made or the destination has refused the batch.
    fn note_no_attempt(&self, name: &str, state: &DeliveryState) {
        let noted = match self.store.state(name) {
            Ok(found) if found.in_flight => self.store.set_state(name, state),
            _ => return,
        };
        if let Err(error) = noted {
            tracing::debug!(%error, batch = name, "the end of an attempt is not noted");
        }
    }

    fn load_for_delivery(&mut self, name: &str) -> Result<Option<Batch>, Error> {
        Ok(match self.store.load_for_delivery(name)? {
            LoadedBatch::Batch(batch) => Some(batch),
            LoadedBatch::Gone => None,
            LoadedBatch::Damaged => {
                self.done.damaged += 1;
                None
            }
        })
    }

    pub(super) fn attempt(
        &mut self,
        name: &str,
        trust: RecordFault,
    ) -> Result<AttemptResult, Error> {
        let mut state = self.store.state(name)?;
        if state.splitting {
            // Its halves are sent instead.
            let halves = match self.load_for_delivery(name)? {
                Some(batch) => self.store.split(&batch, &state)?,
                None => None,
            };
            let halves =
                halves.map(|halves| NextStep::SendPieces(halves.into(), RecordFault::Unproven));
            return Ok(AttemptResult::Other(halves.unwrap_or(NextStep::Continue)));
        }
        let now = self.clock.now();
        if state.is_in_the_future(now) {
            let long = Duration::from_millis(state.waits_for);
            state.wait(now, long);
            self.store.set_state(name, &state)?;
        }
        let left = state.wait_left(now).min(self.options.max_wait);
        let is_first = state.run != Some(self.run);
        let is_ignored = self.options.ignore_backoff && is_first;
        if !left.is_zero() && !is_ignored {
            return Ok(AttemptResult::Other(NextStep::RetryIn(left)));
        }
        let Some(batch) = self.load_for_delivery(name)? else {
            return Ok(AttemptResult::Other(NextStep::Continue));
        };
        // A crash may have come after the last attempt: it may have got through.
        state.unknown = state.is_unknown();
        state.proven |= trust == RecordFault::Proven;
        let before = DeliveryState {
            in_flight: false,
            ..state.clone()
        };
        state.begin(now);
        if let Err(error) = self.store.set_state(name, &state) {
            self.note_no_attempt(name, &before);
            return Err(error);
        }
        let (said, is_too_large) = match self.sink.send(&batch) {
            Answer::Accepted { said } => {
                self.record_acceptance(&batch, &said)?;
                return Ok(AttemptResult::Accepted);
            }
            Answer::Later {
                said,
                unknown,
                after,
            } => {
                state.end(unknown, &said);
                state.count_round(self.run);
                let next = self.schedule_retry(name, &batch, state, &said, after)?;
                return Ok(AttemptResult::Other(next));
            }
            Answer::Misconfigured { said } => {
                state.end(false, &said);
                self.store.set_state(name, &state)?;
                let is_new = !self.is_paused;
                let next = self.pause_for_a_person(said, MISCONFIGURED_PAUSE, is_new, false)?;
                return Ok(AttemptResult::Other(next));
            }
            Answer::Rejected { said } => (said, false),
            Answer::TooLarge { said } => (said, true),
        };
        // It was heard and answered: the destination is well.
        self.consecutive_failures = 0;
        state.end(false, &said);
        Ok(AttemptResult::Rejected(Box::new(RejectedBatch {
            batch,
            state,
            said,
            is_too_large,
        })))
    }

    fn record_acceptance(&mut self, batch: &Batch, said: &str) -> Result<(), Error> {
        self.store.delivered(batch, said)?;
        self.consecutive_failures = 0;
        if let Err(error) = self.set_standing(Standing::Accepts) {
            // Without the note the next rejection is only looked into more carefully.
            tracing::debug!(%error, "the standing of the destination is not noted");
            self.standing = Standing::Accepts;
        }
        self.end_pause()?;
        let records = batch.records().len() as u64;
        self.done.batches += 1;
        self.done.records += records;
        (self.watch.progress)(Progress::Delivered { records });
        Ok(())
    }

    /// Pauses delivery for so long, since the destination accepts nothing.
    pub(super) fn pause_for_a_person(
        &mut self,
        said: String,
        long: Duration,
        is_new: bool,
        is_rejecting: bool,
    ) -> Result<NextStep, Error> {
        let to = self.sink.name();
        if is_new {
            tracing::warn!(to, said, "delivery pauses: nothing is taken");
        } else {
            tracing::debug!(to, said, "delivery still pauses");
        }
        let now = self.clock.now();
        let long = long.min(self.options.max_wait);
        let pause = Pause {
            is_rejecting,
            ..Pause::new(to, now, long, &said, true)
        };
        self.store.set_pause(&pause)?;
        self.is_paused = true;
        self.done.last_error = Some(said);
        self.done.paused = Some(pause);
        Ok(NextStep::Stop)
    }

    fn later(
        &mut self,
        name: &str,
        batch: &Batch,
        mut state: DeliveryState,
        said: &str,
        after: Option<Duration>,
    ) -> Result<NextStep, Error> {
        tracing::debug!(
            batch = name,
            attempts = state.attempts,
            said,
            "not delivered"
        );
        self.done.last_error = Some(said.to_owned());
        let tried_for = Duration::from_secs(state.tried_for);
        if state.rounds >= self.options.give_up_rounds && tried_for >= self.options.give_up_after {
            let why = if state.unknown {
                format!("ambiguous: given up, the destination may have it; it said: {said}")
            } else {
                format!("given up; the destination said: {said}")
            };
            self.fail(batch, &state, &why)?;
            return Ok(NextStep::Continue);
        }
        let now = self.clock.now();
        if let Some(after) = after {
            // It is the destination that wants to wait, not this batch alone.
            // "At once" is not soon enough to be no wait at all.
            let left = after.max(backoff(1, after.max(SHORTEST_PAUSE)));
            let left = left.min(self.options.max_wait);
            let pause = Pause::new(self.sink.name(), now, left, said, false);
            self.store.set_pause(&pause)?;
            self.is_paused = true;
            self.store.set_state(name, &state)?;
            self.consecutive_failures += 1;
            if self.consecutive_failures >= FAILURES_TO_STOP {
                self.done.paused = Some(pause);
                return Ok(NextStep::Stop);
            }
            return Ok(if self.wait_or_stop(left, pause).is_continue() {
                NextStep::RetryIn(Duration::ZERO)
            } else {
                NextStep::Stop
            });
        }
        let wait = backoff(state.attempts, self.options.max_wait);
        state.wait(now, wait);
        self.store.set_state(name, &state)?;
        self.consecutive_failures += 1;
        if self.consecutive_failures >= FAILURES_TO_STOP {
            return Ok(NextStep::Stop);
        }
        if self.consecutive_failures >= FAILURES_TO_SLOW_DOWN {
            let longest = MAX_WAIT_IN_RUN.min(self.options.max_wait);
            let slow = backoff(
                self.consecutive_failures + 1 - FAILURES_TO_SLOW_DOWN,
                longest,
            );
            if self.wait(slow, said).is_break() {
                return Ok(NextStep::Stop);
            }
        }
        Ok(NextStep::RetryIn(wait))
    }

    pub(super) fn fail(
        &mut self,
        batch: &Batch,
        state: &DeliveryState,
        why: &str,
    ) -> Result<(), Error> {
        self.store.fail(batch, state, why)?;
        self.done.failed += batch.records().len() as u64;
        self.done.ambiguous += u64::from(state.is_unknown());
        self.done.last_error = Some(why.to_owned());
        Ok(())
    }

    pub(super) fn end_pause(&mut self) -> Result<(), Error> {
        if std::mem::take(&mut self.is_paused) {
            self.store.end_pause(self.sink.name())?;
        }
        Ok(())
    }
}
