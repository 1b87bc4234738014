//! One run of delivery: oldest first, and bad batches never hold up the others.

use std::collections::{BinaryHeap, VecDeque};
use std::ops::ControlFlow;
use std::time::Duration;

use uuid::Uuid;

use super::rejection::RecordFault;
use super::{Clock, Delivered, DeliveryOptions, Progress, Sink, Watch};
use crate::error::Error;
use crate::manager::{BatchStore, LoadedBatch, Pause, Standing};

/// How many names are in memory at a time.
const PAGE: usize = if cfg!(test) { 512 } else { 16 * 1024 };
/// A run waits for what is due within this, and leaves the rest for the next one.
pub(super) const MAX_WAIT_IN_RUN: Duration = Duration::from_secs(10);

/// Delivers what waits, as part of a run. Whoever calls this is the only one who does.
pub(crate) fn deliver(
    store: &dyn BatchStore,
    sink: &dyn Sink,
    options: &DeliveryOptions,
    clock: &dyn Clock,
    watch: &Watch<'_>,
    run: Uuid,
) -> Result<Delivered, Error> {
    store.tidy()?;
    let mut courier = Courier {
        store,
        sink,
        options,
        clock,
        watch,
        run,
        consecutive_failures: 0,
        standing: store.standing(sink.name())?,
        trusted_origin: None,
        is_paused: false,
        unreadable: 0,
        done: Delivered::default(),
    };
    courier.run()?;
    if courier.unreadable > 0 {
        let (count, last) = (courier.unreadable, courier.done.last_error.as_deref());
        tracing::warn!(count, last, "batches that cannot be read are not delivered");
    }
    courier.done.waiting = store.count()?;
    Ok(courier.done)
}

/// Archives what waits and was never sent anywhere. Returns how many records that is, and which
/// batches were damaged or wait because they cannot be read.
pub(crate) fn archive(
    store: &dyn BatchStore,
    watch: &Watch<'_>,
) -> Result<(u64, Delivered), Error> {
    store.tidy()?;
    let (mut archived, mut done, mut after) = (0, Delivered::default(), None);
    loop {
        let names = store.pending(after.as_deref(), PAGE)?;
        if !names.is_empty() {
            // It is noted that a batch is archived before it is moved. Its name may not be on the disk
            // yet: a consolidation has failed, or another process is at it.
            store.flush()?;
        }
        for name in &names {
            if watch.cancel.is_cancelled() {
                return Ok((archived, done));
            }
            match archive_one(store, name) {
                Ok(LoadedBatch::Batch(batch)) => {
                    let records = batch.records().len() as u64;
                    archived += records;
                    (watch.progress)(Progress::Delivered { records });
                }
                Ok(LoadedBatch::Damaged) => done.damaged += 1,
                Ok(LoadedBatch::Gone) => {}
                // It is tried again in the next run, and holds up no other batch.
                Err(error) if error.stays_in_place() => {
                    tracing::debug!(%error, "not archived");
                    done.waiting += 1;
                    done.last_error = Some(error.to_string());
                }
                Err(error) => return Err(error),
            }
        }
        after = names.last().cloned();
        if after.is_none() {
            return Ok((archived, done));
        }
    }
}

/// Archives one batch. `Gone`: it is none of those that are archived.
fn archive_one(store: &dyn BatchStore, name: &str) -> Result<LoadedBatch, Error> {
    let state = store.state(name)?;
    if state.attempts > 0 || state.is_unknown() || state.splitting {
        // It was on its way to a destination, which may have it.
        return Ok(LoadedBatch::Gone);
    }
    let found = store.load_for_delivery(name)?;
    if let LoadedBatch::Batch(batch) = &found {
        store.archive(batch)?;
    }
    Ok(found)
}

pub(super) struct Courier<'a> {
    pub(super) store: &'a dyn BatchStore,
    pub(super) sink: &'a dyn Sink,
    pub(super) options: &'a DeliveryOptions,
    pub(super) clock: &'a dyn Clock,
    pub(super) watch: &'a Watch<'a>,
    pub(super) run: Uuid,
    /// Failures in a row.
    pub(super) consecutive_failures: u32,
    /// As it is noted in the store.
    pub(super) standing: Standing,
    /// The batch that was rejected after the last acceptance: all of its pieces may be split.
    pub(super) trusted_origin: Option<String>,
    /// A pause is noted that the next success ends.
    pub(super) is_paused: bool,
    /// Batches that could not be read.
    unreadable: u64,
    pub(super) done: Delivered,
}

/// What to do after a batch.
pub(super) enum NextStep {
    GoOn,
    /// It is due again so soon.
    Due(Duration),
    /// These took its place. They come first: the sooner it is known what the destination
    /// accepts, the fewer batches are split in vain.
    Pieces(Vec<String>, RecordFault),
    Stop,
}

/// `Break`: the run ends.
type Flow = ControlFlow<()>;

impl Courier<'_> {
    fn run(&mut self) -> Result<(), Error> {
        if self.wait_for_stored_pause()?.is_break() {
            self.done.is_stopped = true;
            return Ok(());
        }
        loop {
            let mut soonest = None;
            // What was never tried goes first, then what failed least often: however many fail
            // every time, the others get their turn.
            if self.pass_fresh(&mut soonest)?.is_break()
                || self.pass_tried(&mut soonest)?.is_break()
            {
                return Ok(());
            }
            match soonest {
                Some(wait) if wait <= MAX_WAIT_IN_RUN => {
                    let why = self.done.last_error.clone().unwrap_or_default();
                    if self.wait(wait, &why).is_break() {
                        return Ok(());
                    }
                }
                _ => return Ok(()),
            }
        }
    }

    /// Oldest first.
    fn pass_fresh(&mut self, soonest: &mut Option<Duration>) -> Result<Flow, Error> {
        let mut after = None;
        loop {
            let mut names = self.store.pending(after.as_deref(), PAGE)?;
            after = names.last().cloned();
            if after.is_none() {
                return Ok(Flow::Continue(()));
            }
            names.retain(|name| self.attempts(name) == 0);
            if self.pass(names, soonest)?.is_break() {
                return Ok(Flow::Break(()));
            }
        }
    }

    /// Least often tried first. Each page begins after the last one, so that batches which cannot
    /// be read, and so never change, are met once.
    fn pass_tried(&mut self, soonest: &mut Option<Duration>) -> Result<Flow, Error> {
        let mut after = None;
        loop {
            let page = self.least_tried(after.as_ref())?;
            after = page.last().cloned();
            if after.is_none() {
                return Ok(Flow::Continue(()));
            }
            let names = page.into_iter().map(|(_, name)| name).collect();
            if self.pass(names, soonest)?.is_break() {
                return Ok(Flow::Break(()));
            }
        }
    }

    /// Those that were tried, with how often, in this order, beyond the last one that is known.
    fn least_tried(&self, after: Option<&(u32, String)>) -> Result<Vec<(u32, String)>, Error> {
        let (mut least, mut last) = (BinaryHeap::new(), None);
        loop {
            let names = self.store.pending(last.as_deref(), PAGE)?;
            last = names.last().cloned();
            if last.is_none() {
                return Ok(least.into_sorted_vec());
            }
            for name in names {
                let one = (self.attempts(&name), name);
                if one.0 > 0 && after.is_none_or(|after| one > *after) {
                    least.push(one);
                    if least.len() > PAGE {
                        least.pop();
                    }
                }
            }
        }
    }

    /// How often a batch was tried; what cannot be read counts as tried.
    fn attempts(&self, name: &str) -> u32 {
        self.store.state(name).map_or(1, |state| {
            let least = u32::from(state.is_unknown() || state.splitting);
            state.attempts.max(least)
        })
    }

    fn pass(&mut self, names: Vec<String>, soonest: &mut Option<Duration>) -> Result<Flow, Error> {
        let mut names: VecDeque<_> = names
            .into_iter()
            .map(|name| (name, RecordFault::Unproven))
            .collect();
        while let Some((name, trust)) = names.pop_front() {
            if self.watch.cancel.is_cancelled() {
                return Ok(Flow::Break(()));
            }
            match self.deliver_or_skip(&name, trust)? {
                NextStep::Continue => {}
                NextStep::SendPieces(pieces, trust) => {
                    for piece in pieces.into_iter().rev() {
                        names.push_front((piece, trust));
                    }
                }
                NextStep::RetryIn(wait) => {
                    *soonest = Some(soonest.map_or(wait, |other| other.min(wait)));
                }
                NextStep::Stop => {
                    self.done.is_stopped = true;
                    return Ok(Flow::Break(()));
                }
            }
        }
        Ok(Flow::Continue(()))
    }

    /// `Break`: the pause is too long to wait for it.
    fn wait_for_stored_pause(&mut self) -> Result<Flow, Error> {
        let Some(mut pause) = self.store.pause(self.sink.name())? else {
            return Ok(Flow::Continue(()));
        };
        self.is_paused = true;
        let ours = pause.is_misconfigured && self.options.ignore_backoff;
        if ours {
            return Ok(Flow::Continue(()));
        }
        let now = self.clock.now();
        if pause.since > now {
            // The clock went back: the pause begins anew, or it would never end.
            pause.since = now;
            self.store.set_pause(&pause)?;
        }
        let left = pause.left(now).min(self.options.max_wait);
        Ok(self.wait_or_stop(left, pause))
    }

    /// Waits for the end of a pause if it is near. `Break`: it is not, or the work is to end.
    pub(super) fn wait_or_stop(&mut self, left: Duration, pause: Pause) -> Flow {
        if left > MAX_WAIT_IN_RUN || pause.is_misconfigured && !left.is_zero() {
            self.done.last_error = Some(pause.why.clone());
            self.done.paused = Some(pause);
            return Flow::Break(());
        }
        self.wait(left, &pause.why)
    }

    /// `Break`: the work is to end.
    pub(super) fn wait(&self, long: Duration, why: &str) -> Flow {
        let ends = if long.is_zero() {
            self.watch.cancel.is_cancelled()
        } else {
            (self.watch.progress)(Progress::Waiting {
                until: self.clock.now().after(long).into(),
                why: why.to_owned(),
            });
            self.clock.wait(&self.watch.cancel, long)
        };
        if ends {
            Flow::Break(())
        } else {
            Flow::Continue(())
        }
    }

    /// One that cannot be read waits for a person, and holds up nobody.
    fn deliver_or_skip(&mut self, name: &str, trust: RecordFault) -> Result<NextStep, Error> {
        match self.deliver_batch(name, trust) {
            Err(error) if error.stays_in_place() => {
                tracing::debug!(%error, "not delivered");
                self.unreadable += 1;
                self.done.last_error = Some(error.to_string());
                Ok(NextStep::Continue)
            }
            // There is no room to note what becomes of it. Others may need less.
            Err(error) if error.is_full() => {
                tracing::debug!(%error, batch = name, "not delivered");
                self.done.last_error = Some(error.to_string());
                Ok(NextStep::Continue)
            }
            next => next,
        }
    }
}
