//! One run of delivery: oldest batches first, and a bad batch never blocks the others.

use std::collections::{BinaryHeap, VecDeque};
use std::ops::ControlFlow;
use std::time::Duration;

use uuid::Uuid;

use super::rejection::RecordFault;
use super::{Clock, Delivered, DeliveryOptions, Progress, Sink, Watch};
use crate::error::Error;
use crate::manager::{LoadedBatch, Pause, SpoolManager, Standing};

/// Maximum number of batch names in memory, so that memory is bounded for any number of pending
/// batches.
const PAGE: usize = if cfg!(test) { 512 } else { 16 * 1024 };
/// Maximum time for which a run waits for the end of a pause or for the next attempt at a batch.
/// Batches that are due later are left for the next run.
pub(super) const MAX_WAIT_IN_RUN: Duration = Duration::from_secs(10);

/// Delivers the pending batches, as part of a run. The caller must hold the delivery lock.
pub(crate) fn deliver(
    store: &SpoolManager,
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
        tracing::warn!(
            count,
            last,
            "pending batches were not delivered, because their files cannot be read"
        );
    }
    courier.done.waiting = store.count()?;
    Ok(courier.done)
}

/// Archives pending batches that were never sent to a destination. Returns the number of archived
/// records, and the numbers of damaged and unreadable batches.
pub(crate) fn archive(store: &SpoolManager, watch: &Watch<'_>) -> Result<(u64, Delivered), Error> {
    store.tidy()?;
    let (mut archived, mut done, mut after) = (0, Delivered::default(), None);
    loop {
        let names = store.pending(after.as_deref(), PAGE)?;
        if !names.is_empty() {
            // Sync the spool directory before the journal lists a batch as archived. A
            // consolidation that failed or is still running may not have synced the batch's file
            // name, and a power failure could lose the file.
            store.flush()?;
        }
        for name in &names {
            if watch.cancel.is_cancelled() {
                return Ok((archived, done));
            }
            match archive_unsent(store, name) {
                Ok(LoadedBatch::Batch(batch)) => {
                    let records = batch.records().len() as u64;
                    archived += records;
                    (watch.progress)(Progress::Delivered { records });
                }
                Ok(LoadedBatch::Damaged) => done.damaged += 1,
                Ok(LoadedBatch::Gone) => {}
                // A batch that cannot be read, or that a newer version wrote, stays pending for the
                // next run. Such a batch must not keep the other batches from being archived.
                Err(error) if error.stays_in_place() => {
                    tracing::debug!(%error, "batch not archived");
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

/// Archives a batch that was never sent. A batch with an attempt stays pending, because a
/// destination may have it. The result is `Gone` then, so that the caller does not count the batch.
fn archive_unsent(store: &SpoolManager, name: &str) -> Result<LoadedBatch, Error> {
    let state = store.state(name)?;
    if state.attempts > 0 || state.is_unknown() || state.splitting {
        return Ok(LoadedBatch::Gone);
    }
    let loaded = store.load_for_delivery(name)?;
    if let LoadedBatch::Batch(batch) = &loaded {
        store.archive(batch)?;
    }
    Ok(loaded)
}

pub(super) struct Courier<'a> {
    pub(super) store: &'a SpoolManager,
    pub(super) sink: &'a dyn Sink,
    pub(super) options: &'a DeliveryOptions,
    pub(super) clock: &'a dyn Clock,
    pub(super) watch: &'a Watch<'a>,
    pub(super) run: Uuid,
    pub(super) consecutive_failures: u32,
    /// Last verdict of the destination: it accepted or rejected a batch. If it accepted one, the
    /// next rejected batch is split; otherwise that batch is bisected to test the destination.
    pub(super) standing: Standing,
    /// Name of the last batch that the destination rejected although it had accepted another batch
    /// before. So records of this batch are at fault, not the destination, and all its pieces may
    /// be split.
    pub(super) trusted_origin: Option<String>,
    /// True if a pause is stored. The next accepted batch ends the pause.
    pub(super) is_paused: bool,
    unreadable: u64,
    pub(super) done: Delivered,
}

/// Next step of a delivery run after an attempt to deliver a batch.
pub(super) enum NextStep {
    Continue,
    /// Send the next batch, and after this duration the batch whose attempt has failed.
    RetryIn(Duration),
    /// Send these pieces of the batch before other batches. Their results show early what the
    /// destination accepts, so that fewer batches are split in vain.
    SendPieces(Vec<String>, RecordFault),
    /// End the run: the destination accepts nothing for now.
    Stop,
}

/// Control flow of a delivery run: `Break` ends the run.
type Flow = ControlFlow<()>;

impl Courier<'_> {
    fn run(&mut self) -> Result<(), Error> {
        if self.wait_for_stored_pause()?.is_break() {
            self.done.is_stopped = true;
            return Ok(());
        }
        loop {
            let mut soonest = None;
            // Batches without an attempt go first, then those with the fewest attempts. So batches
            // that fail every time do not delay the others.
            if self.send_untried(&mut soonest)?.is_break()
                || self.send_tried(&mut soonest)?.is_break()
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

    /// Sends the batches without an attempt, oldest first.
    fn send_untried(&mut self, soonest: &mut Option<Duration>) -> Result<Flow, Error> {
        let mut after = None;
        loop {
            let mut names = self.store.pending(after.as_deref(), PAGE)?;
            after = names.last().cloned();
            if after.is_none() {
                return Ok(Flow::Continue(()));
            }
            names.retain(|name| self.attempts(name) == 0);
            if self.send_all(names, soonest)?.is_break() {
                return Ok(Flow::Break(()));
            }
        }
    }

    /// Sends the batches with attempts, fewest attempts first. Each page starts after the previous
    /// one, so that batches that cannot be read do not come up again.
    fn send_tried(&mut self, soonest: &mut Option<Duration>) -> Result<Flow, Error> {
        let mut after = None;
        loop {
            let page = self.least_tried(after.as_ref())?;
            after = page.last().cloned();
            if after.is_none() {
                return Ok(Flow::Continue(()));
            }
            let names = page.into_iter().map(|(_, name)| name).collect();
            if self.send_all(names, soonest)?.is_break() {
                return Ok(Flow::Break(()));
            }
        }
    }

    /// Returns the next page of batches with attempts, ordered by number of attempts and name.
    fn least_tried(&self, after: Option<&(u32, String)>) -> Result<Vec<(u32, String)>, Error> {
        let (mut page, mut last) = (BinaryHeap::new(), None);
        loop {
            let names = self.store.pending(last.as_deref(), PAGE)?;
            last = names.last().cloned();
            if last.is_none() {
                return Ok(page.into_sorted_vec());
            }
            for name in names {
                let batch = (self.attempts(&name), name);
                if batch.0 > 0 && after.is_none_or(|after| batch > *after) {
                    page.push(batch);
                    if page.len() > PAGE {
                        page.pop();
                    }
                }
            }
        }
    }

    /// Returns the number of attempts to deliver a batch. It is at least 1 if the state of the
    /// batch cannot be read, the outcome of an attempt is unknown, or the batch is being split.
    fn attempts(&self, name: &str) -> u32 {
        self.store.state(name).map_or(1, |state| {
            let min_attempts = u32::from(state.is_unknown() || state.splitting);
            state.attempts.max(min_attempts)
        })
    }

    fn send_all(
        &mut self,
        names: Vec<String>,
        soonest: &mut Option<Duration>,
    ) -> Result<Flow, Error> {
        let mut queue: VecDeque<_> = names
            .into_iter()
            .map(|name| (name, RecordFault::Unproven))
            .collect();
        while let Some((name, fault)) = queue.pop_front() {
            if self.watch.cancel.is_cancelled() {
                return Ok(Flow::Break(()));
            }
            match self.deliver_or_skip(&name, fault)? {
                NextStep::Continue => {}
                NextStep::SendPieces(pieces, fault) => {
                    for piece in pieces.into_iter().rev() {
                        queue.push_front((piece, fault));
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

    /// Waits for the end of the stored pause. `Break`: the pause is longer than a run waits.
    fn wait_for_stored_pause(&mut self) -> Result<Flow, Error> {
        let Some(mut pause) = self.store.pause(self.sink.name())? else {
            return Ok(Flow::Continue(()));
        };
        self.is_paused = true;
        // `ignore_backoff` skips pauses that this process chose, not those that the destination
        // asked for.
        if pause.is_misconfigured && self.options.ignore_backoff {
            return Ok(Flow::Continue(()));
        }
        let now = self.clock.now();
        if pause.since > now {
            // The clock went back. The pause starts again now, otherwise it could last for years.
            pause.since = now;
            self.store.set_pause(&pause)?;
        }
        let left = pause.left(now).min(self.options.max_wait);
        Ok(self.wait_for_pause(left, pause))
    }

    /// Waits for the end of a pause. `Break`: the pause is longer than a run waits, or the run is
    /// cancelled.
    pub(super) fn wait_for_pause(&mut self, left: Duration, pause: Pause) -> Flow {
        if left > MAX_WAIT_IN_RUN || pause.is_misconfigured && !left.is_zero() {
            self.done.last_error = Some(pause.why.clone());
            self.done.paused = Some(pause);
            return Flow::Break(());
        }
        self.wait(left, &pause.why)
    }

    /// Waits for the duration. Returns `Break` if the run is cancelled.
    pub(super) fn wait(&self, duration: Duration, why: &str) -> Flow {
        if !duration.is_zero() {
            (self.watch.progress)(Progress::Waiting {
                until: self.clock.now().after(duration).into(),
                why: why.to_owned(),
            });
            self.clock.wait(&self.watch.cancel, duration);
        }
        if self.watch.cancel.is_cancelled() {
            Flow::Break(())
        } else {
            Flow::Continue(())
        }
    }

    /// Delivers a batch. Skips a batch that cannot be read, or whose outcome cannot be stored on a
    /// full disk: another batch may need less space.
    fn deliver_or_skip(&mut self, name: &str, fault: RecordFault) -> Result<NextStep, Error> {
        match self.deliver_batch(name, fault) {
            Err(error) if error.stays_in_place() => {
                tracing::debug!(%error, "batch not delivered");
                self.unreadable += 1;
                self.done.last_error = Some(error.to_string());
                Ok(NextStep::Continue)
            }
            Err(error) if error.is_full() => {
                tracing::debug!(%error, batch = name, "batch not delivered");
                self.done.last_error = Some(error.to_string());
                Ok(NextStep::Continue)
            }
            next => next,
        }
    }
}
