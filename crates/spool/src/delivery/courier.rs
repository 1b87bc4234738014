//! One run of delivery: oldest first, and bad batches never hold up the others.

use std::collections::{BinaryHeap, VecDeque};
use std::time::Duration;

use uuid::Uuid;

use super::backoff::backoff;
use super::{Answer, Clock, Delivered, DeliveryOptions, Progress, Sink, Watch};
use crate::error::Error;
use crate::manager::{BatchStore, Found, Pause, State};

/// How many names are in memory at a time.
const PAGE: usize = 1024;
/// A run waits for what is due within this, and leaves the rest for the next one.
const PATIENCE: Duration = Duration::from_secs(10);
/// After so many failures in a row it is not the batches: it waits between them ...
const STRIKES_TO_SLOW_DOWN: u32 = 3;
/// ... and after so many the run ends.
const STRIKES_TO_STOP: u32 = 6;
/// A destination that rejected every record of a batch, and then so many other batches, and took
/// nothing, is the wrong one.
const REJECTIONS_TO_STOP: u32 = 20;
/// The shortest wait after which a destination is asked again.
const SHORTEST_PAUSE: Duration = Duration::from_secs(1);
/// How soon a destination is asked again that takes nothing from us.
const MISCONFIGURED_PAUSE: Duration = Duration::from_secs(30);

/// Delivers what waits, as part of a run. Whoever calls this is the only one who does.
pub(crate) fn deliver(
    store: &dyn BatchStore,
    sink: &dyn Sink,
    options: &DeliveryOptions,
    clock: &dyn Clock,
    watch: &Watch<'_>,
    run: Uuid,
) -> Result<Delivered, Error> {
    let mut courier = Courier {
        store,
        sink,
        options,
        clock,
        watch,
        run,
        strikes: 0,
        has_rejected: false,
        rejections: 0,
        are_few: false,
        is_paused: false,
        done: Delivered::default(),
    };
    store.tidy()?;
    courier.run()?;
    courier.done.waiting = store.count()?;
    Ok(courier.done)
}

/// Archives what waits and was never sent anywhere. Returns how many records that is.
pub(crate) fn archive(store: &dyn BatchStore, watch: &Watch<'_>) -> Result<u64, Error> {
    store.tidy()?;
    let (mut archived, mut after) = (0, None);
    loop {
        let names = store.pending(after.as_deref(), PAGE)?;
        for name in &names {
            if watch.cancel.is_cancelled() {
                return Ok(archived);
            }
            let state = store.state(name)?;
            if (state.attempts > 0 || state.is_unknown()) && !state.splitting {
                // It was on its way to a destination, which may have it.
                continue;
            }
            let Found::Batch(batch) = store.take(name)? else {
                continue;
            };
            if state.splitting {
                // Its halves are archived instead.
                store.split(&batch, &state)?;
                continue;
            }
            let records = batch.records().len() as u64;
            store.archive(&batch)?;
            archived += records;
            (watch.progress)(Progress::Delivered { records });
        }
        after = names.last().cloned();
        if after.is_none() {
            return Ok(archived);
        }
    }
}

struct Courier<'a> {
    store: &'a dyn BatchStore,
    sink: &'a dyn Sink,
    options: &'a DeliveryOptions,
    clock: &'a dyn Clock,
    watch: &'a Watch<'a>,
    run: Uuid,
    /// Failures in a row.
    strikes: u32,
    /// Something was rejected, down to its records.
    has_rejected: bool,
    /// Other batches that were rejected while nothing was taken.
    rejections: u32,
    /// There are too few batches to say that everything is rejected.
    are_few: bool,
    /// A pause is noted that the next success ends.
    is_paused: bool,
    done: Delivered,
}

/// What to do after a batch.
enum Next {
    GoOn,
    /// It is due again so soon.
    Due(Duration),
    /// These took its place.
    Halves([String; 2]),
    Stop,
}

impl Courier<'_> {
    fn run(&mut self) -> Result<(), Error> {
        if !self.wait_for_the_pause()? {
            self.done.is_stopped = true;
            return Ok(());
        }
        loop {
            let mut soonest = None;
            // What was never tried goes first, then what failed least often: however many fail
            // every time, the others get their turn.
            if !self.pass_fresh(&mut soonest)? || !self.pass_tried(&mut soonest)? {
                return Ok(());
            }
            self.are_few = true;
            match soonest {
                Some(wait) if wait <= PATIENCE => {
                    let why = self.done.last_error.clone().unwrap_or_default();
                    if self.wait(wait, &why) {
                        return Ok(());
                    }
                }
                _ => return Ok(()),
            }
        }
    }

    /// Oldest first. `false`: the run ends.
    fn pass_fresh(&mut self, soonest: &mut Option<Duration>) -> Result<bool, Error> {
        let mut after = None;
        loop {
            let mut names = self.store.pending(after.as_deref(), PAGE)?;
            after = names.last().cloned();
            if after.is_none() {
                return Ok(true);
            }
            names.retain(|name| self.attempts(name) == 0);
            if !self.pass(&names, soonest)? {
                return Ok(false);
            }
        }
    }

    /// `false`: the run ends.
    fn pass_tried(&mut self, soonest: &mut Option<Duration>) -> Result<bool, Error> {
        let names = self.least_tried()?;
        let goes_on = self.pass(&names, soonest)?;
        if names.len() == PAGE && soonest.is_none() {
            // The others have their turn next.
            *soonest = Some(Duration::ZERO);
        }
        Ok(goes_on)
    }

    /// Those that were tried, least often first.
    fn least_tried(&self) -> Result<Vec<String>, Error> {
        let (mut least, mut last) = (BinaryHeap::new(), None);
        loop {
            let names = self.store.pending(last.as_deref(), PAGE)?;
            last = names.last().cloned();
            if last.is_none() {
                let least = least.into_sorted_vec();
                return Ok(least.into_iter().map(|(_, name)| name).collect());
            }
            for name in names {
                let attempts = self.attempts(&name);
                if attempts > 0 {
                    least.push((attempts, name));
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

    /// `false`: the run ends.
    fn pass(&mut self, names: &[String], soonest: &mut Option<Duration>) -> Result<bool, Error> {
        let mut names: VecDeque<_> = names.iter().map(|name| (name.clone(), false)).collect();
        while let Some((name, is_half)) = names.pop_front() {
            if self.watch.cancel.is_cancelled() {
                return Ok(false);
            }
            match self.one(&name, is_half)? {
                Next::GoOn => {}
                // Before anything else: the sooner it is known what the destination takes, the
                // fewer are split in vain.
                Next::Halves([first, second]) => {
                    names.push_front((second, true));
                    names.push_front((first, true));
                }
                Next::Due(wait) => {
                    *soonest = Some(soonest.map_or(wait, |other| other.min(wait)));
                }
                Next::Stop => {
                    self.done.is_stopped = true;
                    return Ok(false);
                }
            }
        }
        Ok(true)
    }

    /// `false`: the pause is too long to wait for it.
    fn wait_for_the_pause(&mut self) -> Result<bool, Error> {
        let Some(mut pause) = self.store.pause(self.sink.name())? else {
            return Ok(true);
        };
        self.is_paused = true;
        let ours = pause.is_misconfigured && self.options.ignore_backoff;
        if ours {
            return Ok(true);
        }
        let now = self.clock.now();
        if pause.since > now {
            // The clock went back: the pause begins anew, or it would never end.
            pause.since = now;
            self.store.set_pause(&pause)?;
        }
        let left = pause.left(now).min(self.options.longest_wait);
        self.wait_or_stop(left, pause)
    }

    /// Waits for the end of a pause if it is near. `false`: it is not, or the work is to end.
    fn wait_or_stop(&mut self, left: Duration, pause: Pause) -> Result<bool, Error> {
        if left > PATIENCE || pause.is_misconfigured && !left.is_zero() {
            self.done.last_error = Some(pause.why.clone());
            self.done.paused = Some(pause);
            return Ok(false);
        }
        Ok(!self.wait(left, &pause.why))
    }

    /// `true`: the work is to end.
    fn wait(&self, long: Duration, why: &str) -> bool {
        if long.is_zero() {
            return self.watch.cancel.is_cancelled();
        }
        (self.watch.progress)(Progress::Waiting {
            until: self.clock.now().after(long).into(),
            why: why.to_owned(),
        });
        self.clock.wait(&self.watch.cancel, long)
    }

    /// One that cannot be read waits for a person, and holds up nobody.
    fn one(&mut self, name: &str, is_half: bool) -> Result<Next, Error> {
        match self.try_one(name, is_half) {
            Err(error) if error.is_unreadable() => {
                tracing::warn!(%error, "not delivered");
                self.done.last_error = Some(error.to_string());
                Ok(Next::GoOn)
            }
            next => next,
        }
    }

    fn take(&mut self, name: &str) -> Result<Option<crate::Batch>, Error> {
        Ok(match self.store.take(name)? {
            Found::Batch(batch) => Some(batch),
            Found::Gone => None,
            Found::Damaged => {
                self.done.damaged += 1;
                None
            }
        })
    }

    fn try_one(&mut self, name: &str, is_half: bool) -> Result<Next, Error> {
        let mut state = self.store.state(name)?;
        if state.splitting {
            let halves = match self.take(name)? {
                Some(batch) => self.store.split(&batch, &state)?,
                None => None,
            };
            return Ok(halves.map_or(Next::GoOn, Next::Halves));
        }
        let now = self.clock.now();
        if state.is_in_the_future(now) {
            let long = Duration::from_millis(state.waits_for);
            state.wait(now, long);
            self.store.set_state(name, &state)?;
        }
        let left = state.wait_left(now).min(self.options.longest_wait);
        let is_first = state.run != Some(self.run);
        let is_ignored = self.options.ignore_backoff && is_first;
        if !left.is_zero() && !is_ignored {
            return Ok(Next::Due(left));
        }
        let Some(batch) = self.take(name)? else {
            return Ok(Next::GoOn);
        };
        // A crash may have come after the last attempt: it may have got through.
        state.unknown = state.is_unknown();
        state.begin(now);
        self.store.set_state(name, &state)?;
        match self.sink.send(&batch) {
            Answer::Accepted { said } => {
                self.store.delivered(&batch, &said)?;
                self.strikes = 0;
                self.end_the_pause()?;
                let records = batch.records().len() as u64;
                self.done.batches += 1;
                self.done.records += records;
                (self.watch.progress)(Progress::Delivered { records });
                Ok(Next::GoOn)
            }
            Answer::Rejected { said } => {
                // It was heard and answered: the destination is well.
                self.strikes = 0;
                self.end_the_pause()?;
                state.end(false, &said);
                let is_proven = self.done.batches > 0 || self.are_few;
                if !is_proven && self.has_rejected && !is_half {
                    // Perhaps not these records are wrong, but everything is.
                    return self.doubt(name, &state, said);
                }
                self.has_rejected = true;
                if state.unknown {
                    let why = format!("ambiguous: the destination may have it; it said: {said}");
                    self.fail(&batch, &state, &why)?;
                } else if let Some(halves) = self.store.split(&batch, &state)? {
                    self.done.split += 1;
                    return Ok(Next::Halves(halves));
                } else {
                    self.fail(&batch, &state, &said)?;
                }
                Ok(Next::GoOn)
            }
            Answer::Later {
                said,
                unknown,
                after,
            } => {
                state.end(unknown, &said);
                state.count_round(self.run);
                self.later(name, &batch, state, &said, after)
            }
            Answer::Misconfigured { said } => {
                state.end(false, &said);
                self.store.set_state(name, &state)?;
                self.pause_for_a_person(said)
            }
        }
    }

    /// Leaves a batch that was rejected as it is, until something was taken. If too many are, it is
    /// not the batches.
    fn doubt(&mut self, name: &str, state: &State, said: String) -> Result<Next, Error> {
        self.store.set_state(name, state)?;
        self.rejections += 1;
        if self.rejections < REJECTIONS_TO_STOP {
            self.done.last_error = Some(said);
            return Ok(Next::Due(Duration::ZERO));
        }
        self.pause_for_a_person(format!("it rejects everything: {said}"))
    }

    fn pause_for_a_person(&mut self, said: String) -> Result<Next, Error> {
        let to = self.sink.name();
        if self.is_paused {
            tracing::debug!(to, said, "delivery still pauses");
        } else {
            tracing::warn!(to, said, "delivery pauses: nothing is taken");
        }
        let now = self.clock.now();
        let long = MISCONFIGURED_PAUSE.min(self.options.longest_wait);
        let pause = Pause::new(self.sink.name(), now, long, &said, true);
        self.store.set_pause(&pause)?;
        self.done.last_error = Some(said);
        self.done.paused = Some(pause);
        Ok(Next::Stop)
    }

    fn later(
        &mut self,
        name: &str,
        batch: &crate::Batch,
        mut state: State,
        said: &str,
        after: Option<Duration>,
    ) -> Result<Next, Error> {
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
            return Ok(Next::GoOn);
        }
        let now = self.clock.now();
        if let Some(after) = after {
            // It is the destination that wants to wait, not this batch alone.
            // "At once" is not soon enough to be no wait at all.
            let left = after.max(backoff(1, after.max(SHORTEST_PAUSE)));
            let left = left.min(self.options.longest_wait);
            let pause = Pause::new(self.sink.name(), now, left, said, false);
            self.store.set_pause(&pause)?;
            self.is_paused = true;
            self.store.set_state(name, &state)?;
            self.strikes += 1;
            if self.strikes >= STRIKES_TO_STOP {
                self.done.paused = Some(pause);
                return Ok(Next::Stop);
            }
            return Ok(if self.wait_or_stop(left, pause)? {
                Next::Due(Duration::ZERO)
            } else {
                Next::Stop
            });
        }
        let wait = backoff(state.attempts, self.options.longest_wait);
        state.wait(now, wait);
        self.store.set_state(name, &state)?;
        self.strikes += 1;
        if self.strikes >= STRIKES_TO_STOP {
            return Ok(Next::Stop);
        }
        if self.strikes >= STRIKES_TO_SLOW_DOWN {
            let longest = PATIENCE.min(self.options.longest_wait);
            let slow = backoff(self.strikes + 1 - STRIKES_TO_SLOW_DOWN, longest);
            if self.wait(slow, said) {
                return Ok(Next::Stop);
            }
        }
        Ok(Next::Due(wait))
    }

    fn fail(&mut self, batch: &crate::Batch, state: &State, why: &str) -> Result<(), Error> {
        self.store.fail(batch, state, why)?;
        self.done.failed += batch.records().len() as u64;
        self.done.ambiguous += u64::from(state.is_unknown());
        self.done.last_error = Some(why.to_owned());
        Ok(())
    }

    fn end_the_pause(&mut self) -> Result<(), Error> {
        if std::mem::take(&mut self.is_paused) {
            self.store.end_pause(self.sink.name())?;
        }
        Ok(())
    }
}
