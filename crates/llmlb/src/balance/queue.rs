//! The queue of requests that wait for a slot at a backend.
//!
//! A request joins the queue if all its backends are at `max_concurrent`. When a slot becomes free, or a
//! backend comes up or recovers, the next request in turn that can use that backend gets the slot.

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
use crate::atomic_duration::AtomicDuration;
use crate::contention::Contention;

/// The reason why a waiting request gets no slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WaitError {
    /// The queue is full, and no other client has more requests in it.
    Full,
    /// No slot became free within `server.queue_timeout`.
    TimedOut,
    /// All backends that could serve the request are down.
    Down,
}

/// All waiting requests.
#[derive(Debug)]
pub(super) struct Queue {
    /// Number of waiting requests. Read without the lock each time a slot is released.
    waiting: Arc<AtomicUsize>,
    waiters: Mutex<FairQueue<WaitKey, SlotSender>>,
    /// Maximum waiting time.
    timeout: AtomicDuration,
    /// Wakes all waiting requests after an ejection, so that they compute the time of the next trial.
    ejected: Notify,
}

type WaitResult = Result<Slot, WaitError>;
type SlotSender = oneshot::Sender<WaitResult>;

/// A waiting request. Dropping the waiter removes the request from the queue.
#[derive(Debug)]
pub(super) struct Waiter<'a> {
    queue: &'a Queue,
    key: WaitKey,
    client: ClientKey,
    ticket: Ticket,
    receiver: oneshot::Receiver<WaitResult>,
}

impl Queue {
    pub(super) fn new(max: usize, timeout: Duration) -> Self {
        Self {
            waiting: Arc::default(),
            waiters: Mutex::new(FairQueue::new(max)),
            timeout: AtomicDuration::new(timeout),
            ejected: Notify::new(),
        }
    }

    /// Returns the time limit for clients that stall while they hold a slot: `limit` applies while
    /// requests wait in this queue.
    pub(super) fn contention(&self, limit: Duration) -> Contention {
        Contention::new(&self.waiting, limit)
    }

    /// Changes the maximum number of waiting requests and their maximum waiting time. Requests that wait
    /// already stay, with the time that they began with.
    pub(super) fn set_limits(&self, max: usize, timeout: Duration) {
        self.lock().set_max(max);
        self.timeout.set(timeout);
    }

    pub(super) fn len(&self) -> usize {
        self.waiting.load(Ordering::Relaxed)
    }

    /// Number of waiting requests that each of the backends may serve. A request that waits for several
    /// backends counts for each.
    pub(super) fn waiting_for(&self, backends: &[Arc<Backend>]) -> Vec<usize> {
        let mut counts = vec![0; backends.len()];
        if self.len() == 0 {
            return counts; // The usual case, which takes no lock.
        }
        for (key, waiting) in self.lock().lane_lengths() {
            for (count, backend) in counts.iter_mut().zip(backends) {
                if key.may_use(backend) {
                    *count += waiting;
                }
            }
        }
        counts
    }

    /// Joins the queue. `key` is called under the lock, so that the waiter misses no change of its route.
    /// A full queue rejects the newest request of the address with the most requests, which may be this one.
    pub(super) fn join(
        &self,
        client: ClientKey,
        key: impl FnOnce() -> WaitKey,
    ) -> Result<Waiter<'_>, WaitError> {
        let (sender, receiver) = oneshot::channel();
        let mut waiters = self.lock();
        let key = key();
        let joined = waiters.join(key.clone(), client, sender);
        self.count(&waiters);
        drop(waiters);
        let (ticket, evicted) = joined.ok_or(WaitError::Full)?;
        if let Some(evicted) = evicted {
            let _ = evicted.send(Err(WaitError::Full));
        }
        let waiter = Waiter {
            queue: self,
            client,
            ticket,
            receiver,
            key,
        };
        // A slot that was released before `waiting` was increased is found here. A slot that is
        // released later is offered by the thread that releases it.
        fence(Ordering::SeqCst);
        self.serve_matching(|one| *one == waiter.key);
        Ok(waiter)
    }

    /// Gives a slot that became free at a backend to the next waiting request that can use this
    /// backend.
    pub(super) fn slot_freed(&self, backend: &Backend) {
        if self.waiting.load(Ordering::SeqCst) > 0 {
            self.serve(
                |key| key.may_use(backend),
                |key, now, random| key.choose_at(backend, now, random),
            );
        }
    }

    /// Gives free slots to waiting requests, after an ejected backend has recovered and its slots
    /// can be used again.
    pub(super) fn backend_recovered(&self) {
        if self.waiting.load(Ordering::SeqCst) > 0 {
            self.serve_matching(|_| true);
        }
    }

    /// Serves waiting requests after an ejection: if no healthy backend is left, they use ejected backends.
    /// Requests that still wait compute the time of the next trial again.
    pub(super) fn backend_ejected(&self) {
        if self.waiting.load(Ordering::SeqCst) > 0 {
            self.serve_matching(|_| true);
            self.ejected.notify_waiters();
        }
    }

    /// Replaces the routes after a change of the backends. `find` returns the new route for an old one.
    pub(super) fn reroute(&self, find: impl Fn(&Route) -> Option<Arc<Route>>) {
        let mut waiters = self.lock();
        for key in waiters.lanes() {
            let found = find(&key.route);
            key.route = found.unwrap_or_else(|| Arc::new(key.route.without_candidates()));
        }
        drop(waiters);
        self.serve_matching(|_| true);
        self.ejected.notify_waiters();
    }

    /// Gives free slots to the waiters with a key for which `matches` is true.
    fn serve_matching(&self, matches: impl Fn(&WaitKey) -> bool) {
        self.serve(matches, WaitKey::choose);
    }

    fn serve(
        &self,
        matches: impl Fn(&WaitKey) -> bool,
        choose: impl Fn(&WaitKey, Moment, &mut Random) -> Choice,
    ) {
        let now = Moment::now();
        let mut results: Vec<(Option<SlotSender>, WaitResult)> = Vec::new();
        let mut waiters = self.lock();
        waiters.lanes().for_each(|key| key.is_blocked = false);
        Random::with_thread_local(|random| {
            while let Some(lane) = waiters.next(|key| !key.is_blocked && matches(key)) {
                match choose(waiters.lane(lane), now, random) {
                    Choice::Slot(slot) => results.push((waiters.pop(lane), Ok(slot))),
                    Choice::Busy => waiters.lane(lane).is_blocked = true,
                    Choice::Down => {
                        let down = |sender| (Some(sender), Err(WaitError::Down));
                        results.extend(waiters.pop_all(lane).into_iter().map(down));
                    }
                }
            }
        });
        self.count(&waiters);
        drop(waiters);
        // Results are sent after the lock is released. If a waiter is gone, its slot is dropped here, and the
        // release of the slot acquires the lock again.
        for (sender, result) in results {
            let _ = sender.map(|sender| sender.send(result));
        }
    }

    fn lock(&self) -> MutexGuard<'_, FairQueue<WaitKey, SlotSender>> {
        self.waiters.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn count(&self, waiters: &FairQueue<WaitKey, SlotSender>) {
        self.waiting.store(waiters.len(), Ordering::SeqCst);
    }
}

impl Waiter<'_> {
    /// Waits until the queue gives the request a slot, at most for `server.queue_timeout`.
    pub(super) async fn outcome(mut self) -> WaitResult {
        let deadline = Instant::now() + self.queue.timeout.get();
        loop {
            // Subscribe to ejections before the recovery time is read, so that none in between is missed.
            let ejected = self.queue.ejected.notified();
            let recovery = self.recovery().unwrap_or(deadline).min(deadline);
            tokio::select! {
                biased;
                result = &mut self.receiver => return result.unwrap_or(Err(WaitError::Down)),
                () = ejected => {}
                () = sleep_until(recovery) => {
                    if Instant::now() >= deadline {
                        self.leave();
                        // Another thread may have sent a slot just before this request left the
                        // queue. Use that slot instead of reporting a timeout.
                        return self.receiver.try_recv().unwrap_or(Err(WaitError::TimedOut));
                    }
                    self.queue.serve_matching(|one| *one == self.key);
                }
            }
        }
    }

    /// Time at which the waiting request wakes to use an ejected backend: just after the earliest
    /// time at which one of its ejected backends may be tried again. `None` if there is no such
    /// backend.
    fn recovery(&self) -> Option<Instant> {
        let mut waiters = self.queue.lock();
        let key = waiters.lanes().find(|one| **one == self.key)?;
        let recovery = key.recovery(Moment::now())?;
        // Wake the request one millisecond after the ejection ends. The balancer's clock counts
        // whole milliseconds, and a request that wakes too early finds the backend still ejected.
        Some(recovery.instant() + Duration::from_millis(1))
    }

    fn leave(&self) {
        let mut waiters = self.queue.lock();
        let sender = waiters.leave(self.client, self.ticket);
        self.queue.count(&waiters);
        drop(waiters);
        drop(sender);
    }
}

impl Drop for Waiter<'_> {
    fn drop(&mut self) {
        self.leave();
    }
}
