//! One attempt to deliver a batch, and the state that is stored before and after it.

use std::time::Duration;

use super::backoff::backoff;
use super::courier::{Courier, MAX_WAIT_IN_RUN, NextStep};
use super::rejection::{RecordFault, RejectedBatch, RejectionKind};
use super::{Answer, Progress};
use crate::batch::Batch;
use crate::error::Error;
use crate::manager::{DeliveryState, LoadedBatch, Pause, Standing};

/// Consecutive failures after which the run waits between batches: the destination is likely at
/// fault, not the batches.
const FAILURES_TO_SLOW_DOWN: u32 = 3;
/// Consecutive failures after which the run ends: the destination is likely down. Later runs try
/// again.
const FAILURES_TO_STOP: u32 = 6;
/// Lower limit of the pause that a destination requests with `Retry-After`, before jitter subtracts
/// up to half of the limit. Without the limit, `Retry-After: 0` would cause retries in a tight
/// loop.
const MIN_PAUSE: Duration = Duration::from_secs(1);
/// Pause after a response which shows that the destination accepts no batch at all, such as 401.
const MISCONFIGURED_PAUSE: Duration = Duration::from_secs(30);

/// Result of one attempt to deliver a batch.
pub(super) enum AttemptResult {
    Accepted,
    /// The destination will not accept the batch as it is.
    Rejected(Box<RejectedBatch>),
    /// The batch was neither accepted nor rejected: it is pending or gone, or the run ends.
    Undecided(NextStep),
}

/// Reason for a pause of all delivery that likely needs a person to correct the settings or the
/// destination.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum PauseReason {
    /// The destination accepts no request: the address or the token is likely wrong.
    Misconfigured,
    /// The destination rejected a batch and every part of the batch that was sent. The same
    /// happened with `probes` earlier batches since the destination last accepted a batch.
    RejectsAll { probes: u32 },
}

impl Courier<'_> {
    pub(super) fn deliver_batch(
        &mut self,
        name: &str,
        fault: RecordFault,
    ) -> Result<NextStep, Error> {
        match self.attempt(name, fault)? {
            AttemptResult::Accepted => Ok(NextStep::Continue),
            AttemptResult::Rejected(rejected) => {
                let state = rejected.state.clone();
                let next = self.handle_rejection(*rejected);
                if next.is_err() {
                    self.clear_in_flight(name, &state);
                }
                next
            }
            AttemptResult::Undecided(next) => Ok(next),
        }
    }

    /// Stores after an error that no attempt to send the batch is in flight. Otherwise the next run
    /// would treat the batch as one that the destination may have.
    fn clear_in_flight(&self, name: &str, state: &DeliveryState) {
        let stored = match self.store.state(name) {
            Ok(found) if found.in_flight => self.store.set_state(name, state),
            _ => return,
        };
        if let Err(error) = stored {
            tracing::debug!(
                %error,
                batch = name,
                "batch stays marked as in flight: the next run assumes that it may be delivered"
            );
        }
    }

    fn load(&mut self, name: &str) -> Result<Option<Batch>, Error> {
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
        fault: RecordFault,
    ) -> Result<AttemptResult, Error> {
        let mut state = self.store.state(name)?;
        if state.splitting {
            return self.finish_split(name, &state);
        }
        let now = self.clock.now();
        if state.has_future_start(now) {
            let wait = Duration::from_millis(state.waits_for);
            state.wait(now, wait);
            self.store.set_state(name, &state)?;
        }
        let left = state.wait_left(now).min(self.options.max_wait);
        let is_first_in_run = state.run != Some(self.run);
        let ignores_wait = self.options.ignore_backoff && is_first_in_run;
        if !left.is_zero() && !ignores_wait {
            return Ok(AttemptResult::Undecided(NextStep::RetryIn(left)));
        }
        let Some(batch) = self.load(name)? else {
            return Ok(AttemptResult::Undecided(NextStep::Continue));
        };
        // If a process crashed during an earlier attempt, the destination may have the batch.
        // `unknown` marks this, so that the batch is never split: its records could be counted
        // twice.
        state.unknown = state.is_unknown();
        state.proven |= fault == RecordFault::Proven;
        let before = DeliveryState {
            in_flight: false,
            ..state.clone()
        };
        state.begin(now);
        // Check the fence before the attempt is stored. A lost fence that is found only afterwards
        // would leave the batch marked as one that the destination may have.
        self.store.check_fence()?;
        if let Err(error) = self.store.set_state(name, &state) {
            self.clear_in_flight(name, &before);
            return Err(error);
        }
        self.send(name, batch, state)
    }

    /// Sends the halves of a batch that is being split. The batch itself must not be sent any more.
    fn finish_split(&mut self, name: &str, state: &DeliveryState) -> Result<AttemptResult, Error> {
        let halves = match self.load(name)? {
            Some(batch) => self.store.split(&batch, state)?,
            None => None,
        };
        let next = halves.map_or(NextStep::Continue, |halves| {
            NextStep::SendPieces(halves.into(), RecordFault::Unproven)
        });
        Ok(AttemptResult::Undecided(next))
    }

    /// Sends a batch whose attempt is stored as in flight, and handles the answer.
    fn send(
        &mut self,
        name: &str,
        batch: Batch,
        mut state: DeliveryState,
    ) -> Result<AttemptResult, Error> {
        self.store.check_fence()?;
        let (message, kind) = match self.sink.send(&batch) {
            Answer::Accepted { message } => {
                self.handle_acceptance(&batch, &message)?;
                return Ok(AttemptResult::Accepted);
            }
            Answer::Later {
                message,
                unknown,
                after,
            } => {
                state.unknown |= unknown;
                state.end(&message);
                state.count_round(self.run);
                let next = self.schedule_retry(name, &batch, state, &message, after)?;
                return Ok(AttemptResult::Undecided(next));
            }
            Answer::Misconfigured { message } => {
                state.end(&message);
                self.store.set_state(name, &state)?;
                let reason = PauseReason::Misconfigured;
                let next = self.pause_delivery(reason, message, MISCONFIGURED_PAUSE)?;
                return Ok(AttemptResult::Undecided(next));
            }
            Answer::Rejected { message } => (message, RejectionKind::Invalid),
            Answer::TooLarge { message } => (message, RejectionKind::TooLarge),
        };
        // A rejection proves that the destination is reachable, so the rejection ends a series of
        // failures.
        self.consecutive_failures = 0;
        state.end(&message);
        Ok(AttemptResult::Rejected(Box::new(RejectedBatch {
            batch,
            state,
            message,
            kind,
        })))
    }

    fn handle_acceptance(&mut self, batch: &Batch, message: &str) -> Result<(), Error> {
        self.store.delivered(batch, message)?;
        self.consecutive_failures = 0;
        if let Err(error) = self.set_standing(Standing::Accepts) {
            // Continue if the acceptance cannot be stored, because this costs only time: a later
            // run does not know that the destination accepts batches, and bisects the next rejected
            // batch to test the destination.
            tracing::debug!(%error, "cannot store that the destination accepted a batch");
            self.standing = Standing::Accepts;
        }
        self.end_pause()?;
        let records = batch.records().len() as u64;
        self.done.batches += 1;
        self.done.records += records;
        (self.watch.progress)(Progress::Delivered { records });
        Ok(())
    }

    /// Pauses all delivery to the destination, and ends the run.
    pub(super) fn pause_delivery(
        &mut self,
        reason: PauseReason,
        message: String,
        duration: Duration,
    ) -> Result<NextStep, Error> {
        let to = self.sink.name();
        let is_new = match reason {
            PauseReason::Misconfigured => !self.is_paused,
            PauseReason::RejectsAll { probes } => probes == 0,
        };
        if is_new {
            tracing::warn!(
                to,
                why = message,
                "delivery paused: the destination accepts no batch"
            );
        } else {
            tracing::debug!(to, why = message, "delivery still paused");
        }
        let duration = duration.min(self.options.max_wait);
        let pause = Pause {
            is_misconfigured: true,
            is_rejecting: reason != PauseReason::Misconfigured,
            ..Pause::new(to, self.clock.now(), duration, &message)
        };
        self.store.set_pause(&pause)?;
        self.is_paused = true;
        self.done.last_error = Some(message);
        self.done.paused = Some(pause);
        Ok(NextStep::Stop)
    }

    /// Stores the time of the next attempt to deliver the batch. Moves the batch to `failed/`
    /// instead if it has failed in too many runs and for too long.
    fn schedule_retry(
        &mut self,
        name: &str,
        batch: &Batch,
        mut state: DeliveryState,
        message: &str,
        after: Option<Duration>,
    ) -> Result<NextStep, Error> {
        let attempts = state.attempts;
        tracing::debug!(batch = name, attempts, why = message, "batch not delivered");
        self.done.last_error = Some(message.to_owned());
        let tried_for = Duration::from_secs(state.tried_for);
        if state.rounds >= self.options.give_up_rounds && tried_for >= self.options.give_up_after {
            let reason = if state.unknown {
                format!(
                    "ambiguous: given up, the destination may have the batch; last error: {message}"
                )
            } else {
                format!("given up: the batch failed for too long; last error: {message}")
            };
            self.fail(batch, &state, &reason)?;
            return Ok(NextStep::Continue);
        }
        if let Some(after) = after {
            return self.pause_as_requested(name, &state, message, after);
        }
        let wait = backoff(state.attempts, self.options.max_wait);
        state.wait(self.clock.now(), wait);
        self.store.set_state(name, &state)?;
        self.consecutive_failures += 1;
        if self.consecutive_failures >= FAILURES_TO_STOP {
            return Ok(NextStep::Stop);
        }
        if self.consecutive_failures >= FAILURES_TO_SLOW_DOWN {
            let max_wait = MAX_WAIT_IN_RUN.min(self.options.max_wait);
            let failures = self.consecutive_failures + 1 - FAILURES_TO_SLOW_DOWN;
            if self.wait(backoff(failures, max_wait), message).is_break() {
                return Ok(NextStep::Stop);
            }
        }
        Ok(NextStep::RetryIn(wait))
    }

    /// Pauses all delivery for as long as the destination asked for (`Retry-After`).
    fn pause_as_requested(
        &mut self,
        name: &str,
        state: &DeliveryState,
        message: &str,
        after: Duration,
    ) -> Result<NextStep, Error> {
        let duration = after.max(backoff(1, after.max(MIN_PAUSE)));
        let duration = duration.min(self.options.max_wait);
        let pause = Pause::new(self.sink.name(), self.clock.now(), duration, message);
        self.store.set_pause(&pause)?;
        self.is_paused = true;
        self.store.set_state(name, state)?;
        self.consecutive_failures += 1;
        if self.consecutive_failures >= FAILURES_TO_STOP {
            self.done.paused = Some(pause);
            return Ok(NextStep::Stop);
        }
        Ok(if self.wait_for_pause(duration, pause).is_continue() {
            NextStep::RetryIn(Duration::ZERO)
        } else {
            NextStep::Stop
        })
    }

    pub(super) fn fail(
        &mut self,
        batch: &Batch,
        state: &DeliveryState,
        reason: &str,
    ) -> Result<(), Error> {
        self.store.fail(batch, state, reason)?;
        self.done.failed += batch.records().len() as u64;
        self.done.ambiguous += u64::from(state.is_unknown());
        self.done.last_error = Some(reason.to_owned());
        Ok(())
    }

    pub(super) fn end_pause(&mut self) -> Result<(), Error> {
        if std::mem::take(&mut self.is_paused) {
            self.store.end_pause(self.sink.name())?;
        }
        Ok(())
    }
}
