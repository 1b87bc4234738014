//! The thread that renews a lease until it is released or lost.
//!
//! Each lease has a thread of its own, so that a slow request for one lease delays no other. A thread
//! whose lease has ended is used again for a short time, because starting a thread takes about as
//! long as a request to a Redis server nearby.

use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use super::backend::{Backend, Grant, LeaseId, Renewed};
use super::state::LeaseState;
use crate::sys::clock;

/// Number of renewals in one TTL. A renewal that fails can therefore be repeated before the lease
/// ends.
const RENEWALS_PER_TTL: u32 = 3;
/// Pause after the first failed renewal of a lease. The pause doubles with each further failure.
const FIRST_RETRY: Duration = Duration::from_millis(50);

/// Time for which a renewal thread without a lease waits for another lease before it ends.
const IDLE_TIME: Duration = Duration::from_secs(1);
/// Maximum number of renewal threads that are kept without a lease. Further ones end at once, so
/// that a process which once had many leases does not keep their threads.
const MAX_IDLE: usize = 4;

/// Renewal threads without a lease. A lease is sent to such a thread only while this mutex is
/// locked. A thread that ends removes itself under the mutex too, so no lease is sent to a thread
/// that has ended.
static IDLE: Mutex<IdleThreads> = Mutex::new(IdleThreads {
    process: 0,
    threads: Vec::new(),
});

struct IdleThreads {
    /// Process that started the threads. A forked child has none of them.
    process: u32,
    threads: Vec<(thread::ThreadId, Sender<Job>)>,
}

/// Handle of a renewal thread. Dropping it ends the thread after its present request.
#[derive(Debug)]
pub(super) struct Renewal {
    /// Sender without messages: dropping it wakes the renewal thread, which then ends the renewal.
    stop: Mutex<Option<Sender<()>>>,
}

impl Renewal {
    pub(super) fn start(
        backend: Arc<dyn Backend>,
        id: Arc<LeaseId>,
        grant: Grant,
        state: LeaseState,
        url: Arc<str>,
    ) -> std::io::Result<Self> {
        let (stop, stopped) = mpsc::channel::<()>();
        let job = Job {
            backend,
            id,
            grant,
            state,
            url,
            stopped,
        };
        if let Some(job) = send_to_idle_thread(job) {
            thread::Builder::new()
                .name("tenure-renew".to_owned())
                .spawn(move || run_thread(job))?;
        }
        Ok(Self {
            stop: Mutex::new(Some(stop)),
        })
    }

    /// Ends the renewal. A renewal request that is in progress is harmless, because the store
    /// compares the owner.
    pub(super) fn stop(&self) {
        self.stop
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take();
    }
}

/// A lease to renew.
struct Job {
    backend: Arc<dyn Backend>,
    id: Arc<LeaseId>,
    grant: Grant,
    state: LeaseState,
    url: Arc<str>,
    /// Receiver whose sender is dropped when the renewal must end.
    stopped: Receiver<()>,
}

impl Job {
    fn run(self) {
        let worker = Worker {
            backend: &*self.backend,
            id: &self.id,
            grant: &self.grant,
            state: &self.state,
            url: &self.url,
        };
        worker.run(|pause| self.stopped.recv_timeout(pause) == Err(RecvTimeoutError::Timeout));
    }
}

/// Renews one lease after the other, until no other lease follows in time.
fn run_thread(first: Job) {
    let mut next = Some(first);
    while let Some(job) = next {
        job.run();
        next = wait_for_job();
    }
}

fn wait_for_job() -> Option<Job> {
    let (sender, jobs) = mpsc::channel();
    let own = thread::current().id();
    {
        // The mutex is not waited for: in a forked child it can stay locked forever by a thread
        // that exists only in the parent.
        let mut idle = IDLE.try_lock().ok()?;
        if idle.process != std::process::id() {
            // The threads of these senders exist only in the parent process. Dropping the senders
            // could wait for the locks of those threads, so they are leaked.
            std::mem::forget(std::mem::take(&mut idle.threads));
            idle.process = std::process::id();
        }
        if idle.threads.len() >= MAX_IDLE {
            return None;
        }
        idle.threads.push((own, sender));
    }
    if let Ok(job) = jobs.recv_timeout(IDLE_TIME) {
        return Some(job);
    }
    let mut idle = IDLE.lock().unwrap_or_else(PoisonError::into_inner);
    idle.threads.retain(|(thread, _)| *thread != own);
    jobs.try_recv().ok()
}

/// Passes the lease to an idle renewal thread, which saves starting a new one. Returns the job if
/// no thread is idle.
fn send_to_idle_thread(job: Job) -> Option<Job> {
    // The mutex is not waited for: in a forked child it can stay locked forever. Starting a new
    // thread costs little more than waiting.
    let Ok(mut idle) = IDLE.try_lock() else {
        return Some(job);
    };
    if idle.process != std::process::id() {
        return Some(job);
    }
    match idle.threads.pop() {
        Some((_, thread)) => thread.send(job).err().map(|unsent| unsent.0),
        None => Some(job),
    }
}

struct Worker<'a> {
    backend: &'a dyn Backend,
    id: &'a LeaseId,
    grant: &'a Grant,
    state: &'a LeaseState,
    url: &'a str,
}

impl Worker<'_> {
    /// Renews the lease at regular intervals until the owner releases it or it is lost.
    fn run(&self, pause: impl Fn(Duration) -> bool) {
        let interval = self.id.ttl / RENEWALS_PER_TTL;
        let mut wait = interval;
        let mut retry = FIRST_RETRY;
        let mut failing = false;
        while pause(wait) {
            let Some(deadline) = self.state.deadline() else {
                self.report_loss("the lease was not renewed in time");
                return;
            };
            let sent = clock::boot_time();
            // The request ends at the deadline of the lease: a later response could not extend the
            // lease.
            let limit = deadline
                .saturating_sub(sent)
                .min(self.id.request_timeout())
                .max(Duration::from_millis(1));
            match self.backend.renew(self.id, self.grant, limit) {
                Ok(Renewed::Extended { stop_requested }) => {
                    if stop_requested {
                        self.state.request_stop();
                    }
                    if !self.state.extend(sent, self.id.ttl) {
                        // `release` marks the lease as lost too. A release is intended, so no loss
                        // is reported.
                        if pause(Duration::ZERO) {
                            self.end_late_lease();
                        }
                        return;
                    }
                    if failing {
                        tracing::info!(store = self.url, key = self.id.key, "lease renewed again");
                        failing = false;
                    }
                    // The interval counts from the time at which the request was sent, so that a
                    // slow response does not delay the next renewal.
                    wait = (sent + interval).saturating_sub(clock::boot_time());
                    retry = FIRST_RETRY;
                }
                Ok(Renewed::NotOwner) => {
                    self.state.mark_lost();
                    if pause(Duration::ZERO) {
                        self.report_loss(
                            "the store no longer has the lease, or another owner has it",
                        );
                    }
                    return;
                }
                Err(error) => {
                    if !failing {
                        tracing::warn!(
                            store = self.url,
                            key = self.id.key,
                            error = error.why,
                            "the lease could not be renewed; trying again until it expires"
                        );
                        failing = true;
                    }
                    wait = retry;
                    retry = (retry * 2).min(interval);
                }
            }
        }
    }

    /// The store extended a lease that this process already considers lost. Ends it in the store, so
    /// that other processes need not wait for its expiry.
    fn end_late_lease(&self) {
        self.report_loss("the response to the renewal arrived too late");
        if let Err(error) = self.backend.release(self.id, self.id.request_timeout()) {
            tracing::debug!(
                store = self.url,
                key = self.id.key,
                error = error.why,
                "a lost lease was not released; it expires by itself"
            );
        }
    }

    fn report_loss(&self, why: &str) {
        tracing::warn!(
            store = self.url,
            key = self.id.key,
            token = self.grant.token,
            why,
            "the lease is lost"
        );
    }
}

#[cfg(test)]
mod tests {
    use super::super::backend::Attempt;
    use super::super::fake::{Fake, Fault};
    use super::*;

    const TTL: Duration = Duration::from_millis(600);

    /// Acquires the lease and starts its renewal. The fault applies to the first renewal.
    fn held(ttl: Duration, faults: &[Fault]) -> (Arc<Fake>, Renewal, LeaseState) {
        let fake = Arc::new(Fake::default());
        let id = Arc::new(LeaseId {
            key: "k".to_owned(),
            owner: "me".to_owned(),
            ttl,
        });
        let sent = clock::boot_time();
        let Ok(Attempt::Acquired(grant)) = fake.try_acquire(&id, b"", ttl) else {
            panic!("the key is free");
        };
        let state = LeaseState::new(sent, ttl);
        fake.add_faults(faults);
        let backend: Arc<dyn Backend> = fake.clone();
        let renewal = Renewal::start(backend, id, grant, state.clone(), "fake".into()).unwrap();
        (fake, renewal, state)
    }

    fn wait_for_loss(state: &LeaseState) {
        while let Some(deadline) = state.deadline() {
            state.wait_for_change(Some(deadline), Duration::from_secs(60));
        }
    }

    #[test]
    fn lease_is_kept_while_it_is_renewed() {
        let (fake, _renewal, state) = held(TTL, &[]);
        let first = state.deadline().unwrap();
        fake.wait_for_renewals(4);
        assert!(state.deadline().is_some_and(|deadline| deadline > first));
    }

    #[test]
    fn lease_is_lost_at_its_deadline_if_the_store_stays_unreachable() {
        let (fake, _renewal, state) = held(TTL, &[]);
        fake.set_unreachable(true);
        let deadline = state.deadline().unwrap();
        wait_for_loss(&state);
        assert!(clock::boot_time() >= deadline);
        fake.set_unreachable(false);
        assert!(state.is_lost(), "a lost lease stays lost");
    }

    #[test]
    fn lease_survives_an_outage_that_is_shorter_than_its_ttl() {
        let outage = [Fault::Unreachable, Fault::LoseResponse];
        let (fake, _renewal, state) = held(Duration::from_secs(3), &outage);
        // The store extends the lease although the response to the renewal is lost, so that renewal
        // counts.
        fake.wait_for_renewals(3);
        assert!(!state.is_lost());
    }

    #[test]
    fn lease_is_lost_at_once_if_another_owner_has_it() {
        let (fake, _renewal, state) = held(Duration::from_secs(3), &[]);
        fake.set_owner(Some("another"));
        let deadline = state.deadline().unwrap();
        wait_for_loss(&state);
        assert!(clock::boot_time() < deadline, "before its deadline");
        assert_eq!(fake.owner().as_deref(), Some("another"));
    }

    #[test]
    fn response_after_the_deadline_does_not_revive_the_lease_and_releases_it() {
        let (fake, _renewal, state) = held(TTL, &[Fault::Delay(TTL * 2)]);
        wait_for_loss(&state);
        fake.wait_until_free();
        assert!(state.is_lost());
    }

    #[test]
    fn stop_request_is_seen_at_the_next_renewal() {
        let (fake, _renewal, state) = held(TTL, &[]);
        assert!(fake.request_stop("k", "me", TTL).unwrap());
        while !state.is_stop_requested() {
            assert!(!state.is_lost());
            state.wait_for_change(state.deadline(), Duration::from_secs(60));
        }
    }

    #[test]
    fn renewal_ends_when_its_handle_is_dropped() {
        let (fake, renewal, state) = held(TTL, &[]);
        drop(renewal);
        wait_for_loss(&state);
        assert_eq!(fake.owner().as_deref(), Some("me"), "only the TTL ends it");
    }
}
