//! Requests that wait for a place.
//!
//! Whoever finds every backend at its limit joins. Whenever something happens that may help one
//! who waits (a place becomes free, a backend comes up or works again), the next in turn who can
//! use it is given a place.

use std::sync::atomic::{AtomicUsize, Ordering, fence};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::{Notify, oneshot};
use tokio::time::{Instant, sleep_until};

use super::ClientKey;
use super::backend::Backend;
use super::choose::Choice;
use super::clock::Moment;
use super::fair::{FairQueue, Ticket};
use super::random::Random;
use super::route::Route;
use super::slot::Slot;
use super::wait_key::WaitKey;
use crate::contention::Contention;

/// Why a request that waited was not served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Waited {
    /// The queue is full, and the client has more requests in it than others.
    Full,
    /// Nothing became free in time.
    TooLong,
    /// Whoever could serve it is down.
    Down,
}

/// Everyone who waits.
#[derive(Debug)]
pub(super) struct Queue {
    /// How many wait: looked at by everyone who gives a place back, without the lock.
    waiting: Arc<AtomicUsize>,
    line: Mutex<FairQueue<WaitKey, Call>>,
    /// How long one may wait.
    patience: Duration,
    /// A backend was ejected: who waits must see when it may be tried again.
    ejected: Notify,
}

type Outcome = Result<Slot, Waited>;
type Call = oneshot::Sender<Outcome>;

/// One who waits. Who drops it leaves.
#[derive(Debug)]
pub(super) struct Waiting<'a> {
    queue: &'a Queue,
    key: WaitKey,
    client: ClientKey,
    ticket: Ticket,
    called: oneshot::Receiver<Outcome>,
}

impl Queue {
    pub(super) fn new(most: usize, patience: Duration) -> Self {
        Self {
            waiting: Arc::default(),
            line: Mutex::new(FairQueue::new(most)),
            patience,
            ejected: Notify::new(),
        }
    }

    /// The number of waiting requests, for those who hold a slot.
    pub(super) fn contention(&self, limit: Duration) -> Contention {
        Contention::new(&self.waiting, limit)
    }

    /// How many wait.
    pub(super) fn len(&self) -> usize {
        self.waiting.load(Ordering::Relaxed)
    }

    /// Joins the queue. `key` is called under the lock, so that the waiter misses no change of its route.
    /// In a full queue the newest request of the address with the most is rejected, which may be
    /// this one.
    pub(super) fn join(
        &self,
        client: ClientKey,
        key: impl FnOnce() -> WaitKey,
    ) -> Result<Waiting<'_>, Waited> {
        let (call, called) = oneshot::channel();
        let mut line = self.lock();
        let key = key();
        let joined = line.join(key.clone(), client, call);
        self.count(&line);
        drop(line);
        let (ticket, evicted) = joined.ok_or(Waited::Full)?;
        if let Some(evicted) = evicted {
            let _ = evicted.send(Err(Waited::Full));
        }
        let waiting = Waiting {
            queue: self,
            client,
            ticket,
            called,
            key,
        };
        // What became free before it was seen that somebody waits. From here on whoever frees
        // something sees that, or what was freed is seen here.
        fence(Ordering::SeqCst);
        self.settle(|one| *one == waiting.key);
        Ok(waiting)
    }

    /// A place at a backend became free.
    pub(super) fn freed(&self, backend: &Backend) {
        if self.waiting.load(Ordering::SeqCst) > 0 {
            self.serve(
                |key| key.may_use(backend),
                |key, now, random| key.choose_at(backend, now, random),
            );
        }
    }

    /// A backend that was ejected works again.
    pub(super) fn recovered(&self) {
        if self.waiting.load(Ordering::SeqCst) > 0 {
            self.settle(|_| true);
        }
    }

    /// A backend was ejected. If it was the last one, those that are ejected are used after all.
    pub(super) fn ejected(&self) {
        if self.waiting.load(Ordering::SeqCst) > 0 {
            self.settle(|_| true);
            self.ejected.notify_waiters();
        }
    }

    /// It changed who is up and who serves what. `find` tells who serves the same now.
    pub(super) fn reroute(&self, find: impl Fn(&Route) -> Option<Arc<Route>>) {
        let mut line = self.lock();
        for key in line.lanes() {
            let found = find(&key.route);
            key.route = found.unwrap_or_else(|| Arc::new(key.route.without_candidates()));
        }
        drop(line);
        self.settle(|_| true);
        self.ejected.notify_waiters();
    }

    /// Gives free slots to the waiters with a key for which `whose` is true.
    fn settle(&self, whose: impl Fn(&WaitKey) -> bool) {
        self.serve(whose, WaitKey::choose);
    }

    fn serve(
        &self,
        whose: impl Fn(&WaitKey) -> bool,
        choose: impl Fn(&WaitKey, Moment, &mut Random) -> Choice,
    ) {
        let now = Moment::now();
        let mut calls: Vec<(Option<Call>, Outcome)> = Vec::new();
        let mut line = self.lock();
        line.lanes().for_each(|key| key.is_stuck = false);
        Random::with_thread_local(|random| {
            while let Some(lane) = line.next(|key| !key.is_stuck && whose(key)) {
                match choose(line.lane(lane), now, random) {
                    Choice::Slot(slot) => calls.push((line.call(lane), Ok(slot))),
                    Choice::Busy => line.lane(lane).is_stuck = true,
                    Choice::Down => {
                        let down = |call| (Some(call), Err(Waited::Down));
                        calls.extend(line.call_all(lane).into_iter().map(down));
                    }
                }
            }
        });
        self.count(&line);
        drop(line);
        // Without the lock: the place of one who left in this moment is free again at once.
        for (call, outcome) in calls {
            let _ = call.map(|call| call.send(outcome));
        }
    }

    fn lock(&self) -> MutexGuard<'_, FairQueue<WaitKey, Call>> {
        self.line.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn count(&self, line: &FairQueue<WaitKey, Call>) {
        self.waiting.store(line.len(), Ordering::SeqCst);
    }
}

impl Waiting<'_> {
    /// Waits until it is called, or for too long.
    pub(super) async fn outcome(mut self) -> Outcome {
        let deadline = Instant::now() + self.queue.patience;
        loop {
            // Before it is looked when that is, or an ejection in between would go unnoticed.
            let ejected = self.queue.ejected.notified();
            let recovery = self.recovery().unwrap_or(deadline).min(deadline);
            tokio::select! {
                biased;
                called = &mut self.called => return called.unwrap_or(Err(Waited::Down)),
                () = ejected => {}
                () = sleep_until(recovery) => {
                    if Instant::now() >= deadline {
                        self.leave();
                        // It may just have been called.
                        return self.called.try_recv().unwrap_or(Err(Waited::TooLong));
                    }
                    self.queue.settle(|one| *one == self.key);
                }
            }
        }
    }

    /// When a backend that was ejected may be tried again.
    fn recovery(&self) -> Option<Instant> {
        let mut line = self.queue.lock();
        let key = line.lanes().find(|one| **one == self.key)?;
        let recovery = key.recovery(Moment::now())?;
        // Not before that millisecond is over.
        Some(recovery.instant() + Duration::from_millis(1))
    }

    fn leave(&self) {
        let mut line = self.queue.lock();
        let call = line.leave(self.client, self.ticket);
        self.queue.count(&line);
        drop(line);
        drop(call);
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.leave();
    }
}
