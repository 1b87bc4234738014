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

/// Number of renewals in one TTL.
const RENEWALS_PER_TTL: u32 = 3;
/// Pause after the first failed renewal. The pause doubles with each further failure.
const FIRST_RETRY: Duration = Duration::from_millis(50);

/// Time for which a thread waits for another lease.
const IDLE_TIME: Duration = Duration::from_secs(1);
/// Maximum number of threads that wait for another lease.
const MAX_IDLE: usize = 4;

/// Threads that wait for another lease. Leases are sent to them while the mutex is locked, so that a
/// thread that finds none, and removes itself under the mutex, has missed none.
static IDLE: Mutex<IdleThreads> = Mutex::new(IdleThreads {
    process: 0,
    threads: Vec::new(),
});

struct IdleThreads {
    /// Process of the threads. A forked child has none of them.
    process: u32,
    threads: Vec<(thread::ThreadId, Sender<Job>)>,
}

/// Handle of a renewal thread. Dropping it ends the thread after its present request.
#[derive(Debug)]
pub(super) struct Renewal {
    /// Dropping the sender wakes the thread.
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

    /// Ends the thread. A request in progress is harmless, because the store compares the owner.
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
    /// Disconnected when the renewal must end.
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
        // A forked child can find the mutex locked forever.
        let mut idle = IDLE.try_lock().ok()?;
        if idle.process != std::process::id() {
            // The senders belong to threads of the parent process.
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

/// Lets an idle thread renew the lease. Returns the job if there is none.
fn send_to_idle_thread(job: Job) -> Option<Job> {
    // As above. A new thread costs little more than waiting for the mutex.
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
    /// Renews the lease until `pause` returns false or the lease is lost.
    fn run(&self, pause: impl Fn(Duration) -> bool) {
        let interval = self.id.ttl / RENEWALS_PER_TTL;
        let mut wait = interval;
        let mut retry = FIRST_RETRY;
        let mut failing = false;
        while pause(wait) {
            let Some(deadline) = self.state.deadline() else {
                self.report_loss("it was not renewed in time");
                return;
            };
            let sent = clock::boot_time();
            // A response after the deadline is of no use.
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
                        // A release marks the lease as lost too. It needs no report.
                        if pause(Duration::ZERO) {
                            self.end_late_lease();
                        }
                        return;
                    }
                    if failing {
                        tracing::info!(store = self.url, key = self.id.key, "lease renewed again");
                        failing = false;
                    }
                    // Counted from the request, so that slow responses do not delay the next one.
                    wait = (sent + interval).saturating_sub(clock::boot_time());
                    retry = FIRST_RETRY;
                }
                Ok(Renewed::NotOwner) => {
                    self.state.mark_lost();
                    if pause(Duration::ZERO) {
                        self.report_loss("the store no longer has it, or another owner has it");
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
        self.report_loss("the response to its renewal arrived too late");
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
        // The renewal whose response was lost counts too.
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
