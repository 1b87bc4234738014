//! A store of leases in memory whose responses tests can delay, lose or replace.

use std::collections::VecDeque;
use std::sync::{Condvar, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use super::backend::{Attempt, Backend, Entry, Grant, LeaseId, Renewed, StoreError, Waiter};

/// Behaviour of the fake store for one request.
#[derive(Clone, Copy, Debug)]
pub(super) enum Fault {
    /// The store executes the request, and its response arrives after this time.
    Delay(Duration),
    /// The store executes the request, and its response is lost.
    LoseResponse,
    /// The request does not reach the store, and fails.
    Unreachable,
}

/// Fake store with one key, at most one owner, and no expiry.
#[derive(Debug, Default)]
pub(super) struct Fake {
    inner: Mutex<Inner>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct Inner {
    owner: Option<String>,
    token: u64,
    stop: bool,
    /// Faults of the next requests to acquire and renew, in this order. Requests without a fault
    /// succeed.
    faults: VecDeque<Fault>,
    /// True if every request to acquire or renew fails once `faults` is empty.
    unreachable: bool,
    renewals: usize,
    /// Owner ids of all requests to release, with which tests check that no lease is left behind.
    released: Vec<String>,
}

impl Fake {
    pub(super) fn with_faults(faults: &[Fault]) -> Self {
        let fake = Self::default();
        fake.add_faults(faults);
        fake
    }

    pub(super) fn add_faults(&self, faults: &[Fault]) {
        self.lock().faults.extend(faults);
    }

    pub(super) fn wait_until_faults_are_used(&self) {
        let mut inner = self.lock();
        while !inner.faults.is_empty() {
            inner = self
                .changed
                .wait_timeout(inner, Duration::from_millis(10))
                .unwrap_or_else(PoisonError::into_inner)
                .0;
        }
    }

    pub(super) fn wait_until_free(&self) {
        let mut inner = self.lock();
        while inner.owner.is_some() {
            inner = self
                .changed
                .wait(inner)
                .unwrap_or_else(PoisonError::into_inner);
        }
    }

    pub(super) fn owner(&self) -> Option<String> {
        self.lock().owner.clone()
    }

    pub(super) fn released(&self) -> Vec<String> {
        self.lock().released.clone()
    }

    pub(super) fn set_owner(&self, owner: Option<&str>) {
        let mut inner = self.lock();
        inner.owner = owner.map(str::to_owned);
        inner.token += 1;
        self.changed.notify_all();
    }

    pub(super) fn set_unreachable(&self, unreachable: bool) {
        self.lock().unreachable = unreachable;
    }

    pub(super) fn wait_for_renewals(&self, count: usize) {
        let mut inner = self.lock();
        while inner.renewals < count {
            inner = self
                .changed
                .wait(inner)
                .unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn request<T>(&self, execute: impl FnOnce(&mut Inner) -> T) -> Result<T, StoreError> {
        let (outcome, fault) = {
            let mut inner = self.lock();
            let fault = inner.faults.pop_front();
            if fault.is_none() && inner.unreachable || matches!(fault, Some(Fault::Unreachable)) {
                return Err(StoreError::transient("connection refused"));
            }
            (execute(&mut inner), fault)
        };
        self.changed.notify_all();
        match fault {
            Some(Fault::Delay(delay)) => thread::sleep(delay),
            Some(Fault::LoseResponse) => return Err(StoreError::timeout(Duration::ZERO)),
            _ => {}
        }
        Ok(outcome)
    }
}

impl Backend for Fake {
    fn try_acquire(&self, id: &LeaseId, _: &[u8], _: Duration) -> Result<Attempt, StoreError> {
        self.request(|inner| match &inner.owner {
            Some(owner) if *owner != id.owner => Attempt::Held(Entry {
                owner: owner.clone(),
                token: inner.token,
                record: Vec::new(),
                expires_in: None,
            }),
            _ => {
                inner.token += 1;
                inner.owner = Some(id.owner.clone());
                Attempt::Acquired(Grant {
                    token: inner.token,
                    lease: 0,
                })
            }
        })
    }

    fn renew(&self, id: &LeaseId, _: &Grant, _: Duration) -> Result<Renewed, StoreError> {
        self.request(|inner| {
            inner.renewals += 1;
            if inner.owner.as_ref() == Some(&id.owner) {
                Renewed::Extended {
                    stop_requested: inner.stop,
                }
            } else {
                Renewed::NotOwner
            }
        })
    }

    fn write_record(&self, id: &LeaseId, _: &[u8], _: Duration) -> Result<bool, StoreError> {
        Ok(self.lock().owner.as_ref() == Some(&id.owner))
    }

    fn release(&self, id: &LeaseId, _: Duration) -> Result<(), StoreError> {
        let mut inner = self.lock();
        inner.released.push(id.owner.clone());
        if inner.owner.as_ref() == Some(&id.owner) {
            inner.owner = None;
            self.changed.notify_all();
        }
        Ok(())
    }

    fn read(&self, _: &str, _: Duration) -> Result<Option<Entry>, StoreError> {
        Ok(None)
    }

    fn list(&self, _: Duration) -> Result<Vec<(String, Entry)>, StoreError> {
        Ok(Vec::new())
    }

    fn request_stop(&self, _: &str, owner: &str, _: Duration) -> Result<bool, StoreError> {
        let mut inner = self.lock();
        inner.stop = inner.owner.as_deref() == Some(owner);
        Ok(inner.stop)
    }

    fn waiter(&self, _: &str, _: Duration) -> Result<Box<dyn Waiter>, StoreError> {
        Err(StoreError::transient("no notification"))
    }
}
