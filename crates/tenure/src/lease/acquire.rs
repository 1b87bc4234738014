//! Acquiring a lease: one attempt, or waiting for the owner to release it.

use std::hash::BuildHasher;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use super::backend::{Attempt, Entry, Grant, LeaseId, StoreError};
use super::inspect::holder;
use super::renewal::Renewal;
use super::state::LeaseState;
use super::{Lease, LeaseStore, checked_ttl, store_key};
use crate::error::{Error, Kind};
use crate::holder::Holder;
use crate::key::Key;
use crate::record::Record;
use crate::sys::clock;

/// Pause between two attempts to acquire a lease while its store is unreachable.
const UNREACHABLE_PAUSE: Duration = Duration::from_millis(200);
/// Maximum wait for the store's notification that a key was released. The claim then tries to
/// acquire the key again, so a lost notification delays it by no more than this time.
const LONGEST_WAIT: Duration = Duration::from_secs(2);

/// Store, key, TTL and lock record of a claim on a lease store, which are the same for all attempts
/// of the claim.
#[derive(Debug)]
pub(crate) struct LeaseRequest<'a> {
    pub(crate) store: &'a LeaseStore,
    pub(crate) key: &'a Key,
    pub(crate) ttl: Option<Duration>,
    /// Lock record that the store saves with the lease. It lacks the fencing token, which only the
    /// store can choose.
    pub(crate) record: &'a Record,
}

/// Time for which a claim waits while another owner has the key.
pub(crate) enum Patience<'a> {
    /// Fails at once.
    None,
    /// Waits until the deadline, or forever if it is `None`. The first callback receives the owner
    /// that the claim waits for. The claim ends as soon as the second callback returns true.
    Until(
        Option<Instant>,
        &'a mut dyn FnMut(&Holder),
        &'a dyn Fn() -> bool,
    ),
}

pub(crate) fn acquire(
    request: &LeaseRequest<'_>,
    patience: &mut Patience<'_>,
) -> Result<(Lease, u64), Error> {
    let ttl = checked_ttl(request.ttl, request.key)?;
    let id = Arc::new(LeaseId {
        key: store_key(request.key)?,
        owner: new_owner_id(request.record),
        ttl,
    });
    let mut attempts = Attempts {
        request,
        record: request.record.encode(),
        id,
        contacted: false,
        reported: None,
        waiter: None,
    };
    let result = attempts.run(patience);
    if result.is_err() && attempts.contacted {
        // The store may have granted the lease although its response was lost. The lease is
        // released now, so that other processes need not wait for its expiry.
        let limit = Duration::from_millis(500).min(attempts.id.request_timeout());
        let _ = request.store.backend.release(&attempts.id, limit);
    }
    result
}

struct Attempts<'a> {
    request: &'a LeaseRequest<'a>,
    record: Vec<u8>,
    id: Arc<LeaseId>,
    /// True if the last request to acquire failed without a clear response. The store may have
    /// executed it, so the lease is released when the claim ends.
    contacted: bool,
    /// Owner id that was last reported to the caller of a waiting claim. It is compared with the
    /// present owner, so that each owner is reported only once.
    reported: Option<String>,
    waiter: Option<Box<dyn super::backend::Waiter>>,
}

impl Attempts<'_> {
    fn run(&mut self, patience: &mut Patience<'_>) -> Result<(Lease, u64), Error> {
        let backend = &self.request.store.backend;
        let mut was_reachable = false;
        loop {
            let sent = clock::boot_time();
            let limit = self.id.request_timeout();
            let attempt = backend.try_acquire(&self.id, &self.record, limit);
            let entry = match attempt {
                Ok(Attempt::Acquired(grant)) => {
                    let state = LeaseState::new(sent, self.id.ttl);
                    if !state.is_lost() {
                        return self.start_lease(grant, state);
                    }
                    // The response of the store took longer than the TTL, so the granted lease may
                    // have passed to another process already. It is released and not used.
                    let _ = backend.release(&self.id, limit);
                    // A release request may reach the store late. A late release must not end a
                    // newer lease of this process, so the owner id of this attempt is never used
                    // again.
                    let owner = new_owner_id(self.request.record);
                    self.id = Arc::new(LeaseId {
                        owner,
                        ..LeaseId::clone(&self.id)
                    });
                    self.check_patience(patience, || self.slow_response())?;
                    continue;
                }
                Ok(Attempt::Held(entry)) => {
                    was_reachable = true;
                    self.contacted = false;
                    entry
                }
                Ok(Attempt::Unproven { entry, retry }) => {
                    was_reachable = true;
                    self.contacted = false;
                    self.wait_unproven(&entry, retry, patience)?;
                    continue;
                }
                Err(error) => {
                    self.contacted = true;
                    // An unreachable store is retried only if it has responded to this claim
                    // before. Otherwise its address is more likely wrong than the store down, and
                    // the claim fails at once.
                    if !error.transient || !was_reachable || matches!(patience, Patience::None) {
                        return Err(self.request.store.error("acquire", self.request.key, error));
                    }
                    self.waiter = None;
                    let why = || {
                        let error = StoreError::transient(&error.why);
                        self.request.store.error("acquire", self.request.key, error)
                    };
                    let left = self.check_patience(patience, why)?;
                    thread::sleep(UNREACHABLE_PAUSE.min(left));
                    continue;
                }
            };
            let holder = holder(self.request.store, self.request.key, &entry);
            let Patience::Until(..) = patience else {
                return Err(Error::new(Kind::Held {
                    key: self.request.key.to_string(),
                    holder,
                }));
            };
            let timed_out = || {
                Error::new(Kind::TimedOut {
                    key: self.request.key.to_string(),
                    holder: holder.clone(),
                })
            };
            let left = self.check_patience(patience, timed_out)?;
            self.report(&entry, &holder, patience);
            self.wait(&entry, left);
        }
    }

    /// Returns the time for which the claim may still wait for the present owner, or the error that
    /// ends the claim: its deadline has passed or it was cancelled.
    fn check_patience(
        &self,
        patience: &Patience<'_>,
        error: impl FnOnce() -> Error,
    ) -> Result<Duration, Error> {
        match patience {
            Patience::None => Err(error()),
            Patience::Until(deadline, _, is_cancelled) => {
                let left = deadline.map_or(Duration::MAX, |deadline| {
                    deadline.saturating_duration_since(Instant::now())
                });
                if left.is_zero() || is_cancelled() {
                    Err(error())
                } else {
                    Ok(left)
                }
            }
        }
    }

    /// Waits until the store can prove whether the owner still renews its lease. Even a claim that
    /// does not wait for an owner waits for this proof, at most one TTL: without the proof, the key
    /// of a crashed owner would be refused forever.
    fn wait_unproven(
        &mut self,
        entry: &Entry,
        retry: Duration,
        patience: &mut Patience<'_>,
    ) -> Result<(), Error> {
        let mut pause = retry;
        if matches!(patience, Patience::Until(..)) {
            let holder = holder(self.request.store, self.request.key, entry);
            let timed_out = || {
                Error::new(Kind::TimedOut {
                    key: self.request.key.to_string(),
                    holder: holder.clone(),
                })
            };
            pause = pause.min(self.check_patience(patience, timed_out)?);
            self.report(entry, &holder, patience);
        }
        thread::sleep(pause);
        Ok(())
    }

    fn report(&mut self, entry: &Entry, holder: &Holder, patience: &mut Patience<'_>) {
        if let Patience::Until(_, on_wait, _) = patience
            && self.reported.as_ref() != Some(&entry.owner)
        {
            on_wait(holder);
            self.reported = Some(entry.owner.clone());
        }
    }

    /// Waits for the notification that the key was released. The first call only subscribes and
    /// returns at once: the next attempt then sees a release that happened before the subscription.
    fn wait(&mut self, entry: &Entry, left: Duration) {
        let backend = &self.request.store.backend;
        let limit = self.id.request_timeout();
        let waited = match &mut self.waiter {
            None => backend.waiter(&self.id.key, limit).map(|waiter| {
                self.waiter = Some(waiter);
            }),
            Some(waiter) => {
                // Not every store sends a notification when a lease expires, so the wait ends at
                // the expiry at the latest.
                let expiry = entry
                    .expires_in
                    .map_or(LONGEST_WAIT, |left| left + Duration::from_millis(2));
                waiter.wait(left.min(expiry).min(LONGEST_WAIT))
            }
        };
        if let Err(error) = waited {
            tracing::debug!(
                error = error.why,
                "waiting for a lease without notifications from the store"
            );
            self.waiter = None;
            thread::sleep(UNREACHABLE_PAUSE.min(left));
        }
    }

    fn start_lease(&mut self, grant: Grant, state: LeaseState) -> Result<(Lease, u64), Error> {
        let (store, token) = (self.request.store.clone(), grant.token);
        let renewal = Renewal::start(
            Arc::clone(&store.backend),
            Arc::clone(&self.id),
            grant,
            state.clone(),
            Arc::clone(&store.url),
        )
        .map_err(|error| {
            self.contacted = true;
            let why = StoreError::fatal(format!(
                "cannot start the thread that renews the lease: {error}"
            ));
            store.error("renew", self.request.key, why)
        })?;
        let lease = Lease {
            path: store.path_of(self.request.key),
            key: self.request.key.clone(),
            id: Arc::clone(&self.id),
            store,
            state,
            renewal,
        };
        Ok((lease, token))
    }

    fn slow_response(&self) -> Error {
        let why = StoreError::transient("the response took longer than the TTL of the lease");
        self.request.store.error("acquire", self.request.key, why)
    }
}

/// Returns a random id for one acquisition. The store compares it to recognize the owner, so two
/// acquisitions must never have the same id.
fn new_owner_id(record: &Record) -> String {
    // `RandomState` takes its keys from the operating system's random numbers, so the id cannot
    // repeat in another process or after a restart.
    let half = || std::hash::RandomState::new().hash_one((record.pid, clock::boot_time()));
    format!("{:016x}{:016x}", half(), half())
}

#[cfg(test)]
mod tests {
    use super::super::fake::{Fake, Fault};
    use super::*;

    fn claim(
        fake: &Arc<Fake>,
        ttl: Duration,
        wait: Option<Duration>,
    ) -> Result<(Lease, u64), Error> {
        let store = LeaseStore {
            backend: fake.clone(),
            url: "fake://".into(),
        };
        let request = LeaseRequest {
            store: &store,
            key: &Key::name("k").unwrap(),
            ttl: Some(ttl),
            record: &Record::default(),
        };
        let deadline = wait.map(|wait| Instant::now() + wait);
        let mut on_wait = |_: &Holder| {};
        let mut patience = match deadline {
            None => Patience::None,
            Some(deadline) => Patience::Until(Some(deadline), &mut on_wait, &|| false),
        };
        acquire(&request, &mut patience)
    }

    #[test]
    fn owner_ids_differ() {
        let record = Record::default();
        let ids: std::collections::BTreeSet<String> =
            (0..1000).map(|_| new_owner_id(&record)).collect();
        assert_eq!(ids.len(), 1000);
        assert!(ids.iter().all(|id| id.len() == 32));
    }

    #[test]
    fn lease_that_was_granted_in_a_lost_response_is_released() {
        let fake = Arc::new(Fake::with_faults(&[Fault::LoseResponse]));
        let error = claim(&fake, Duration::from_secs(60), None).unwrap_err();
        assert!(error.is_unreachable(), "{error}");
        assert_eq!(fake.owner(), None);
    }

    #[test]
    fn lease_whose_grant_arrives_after_its_ttl_is_not_used() {
        let ttl = Duration::from_secs(1);
        let fake = Arc::new(Fake::with_faults(&[Fault::Delay(ttl)]));
        let error = claim(&fake, ttl, None).unwrap_err();
        assert!(error.is_unreachable(), "{error}");
        assert_eq!(fake.owner(), None);
    }

    #[test]
    fn owner_id_is_not_used_again_after_a_release_was_sent_for_it() {
        let ttl = Duration::from_secs(1);
        let fake = Arc::new(Fake::with_faults(&[Fault::Delay(ttl)]));
        let (lease, _) = claim(&fake, ttl, Some(Duration::from_secs(60))).unwrap();
        assert_eq!(fake.owner(), Some(lease.id.owner.clone()));
        let released = fake.released();
        assert_eq!(released.len(), 1);
        assert_ne!(released[0], lease.id.owner);
    }

    #[test]
    fn waiting_claim_outlasts_an_outage_and_reports_a_timeout_with_the_holder() {
        let fake = Arc::new(Fake::with_faults(&[
            Fault::Delay(Duration::ZERO),
            Fault::Unreachable,
        ]));
        fake.set_owner(Some("another"));
        let waiting = {
            let fake = fake.clone();
            thread::spawn(move || {
                claim(
                    &fake,
                    Duration::from_secs(60),
                    Some(Duration::from_secs(60)),
                )
                .map(|(_, token)| token)
            })
        };
        fake.wait_until_faults_are_used();
        fake.set_owner(None);
        assert!(waiting.join().unwrap().is_ok());

        fake.set_owner(Some("another"));
        let limit = Duration::from_millis(50);
        let error = claim(&fake, Duration::from_secs(60), Some(limit)).unwrap_err();
        assert!(error.is_held() && error.is_timeout(), "{error}");
    }

    #[test]
    fn store_that_was_never_reached_fails_a_waiting_claim_at_once() {
        let fake = Arc::new(Fake::default());
        fake.set_unreachable(true);
        let hour = Duration::from_secs(3600);
        let error = claim(&fake, Duration::from_secs(60), Some(hour)).unwrap_err();
        assert!(error.is_unreachable(), "{error}");
    }

    #[test]
    fn ttl_outside_of_its_range_is_rejected() {
        let fake = Arc::new(Fake::default());
        for ttl in [Duration::from_millis(999), Duration::from_secs(86_401)] {
            let error = claim(&fake, ttl, None).unwrap_err();
            assert!(error.is_bad_key(), "{error}");
        }
        assert_eq!(fake.owner(), None);
    }
}
