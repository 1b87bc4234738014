//! Leases as other processes see them: status, lists, and stop requests.

use std::thread;
use std::time::{Duration, Instant};

use super::backend::{Entry, StoreError};
use super::{LeaseStore, REQUEST_TIMEOUT, key_from_store, store_key};
use crate::error::{Error, Kind};
use crate::holder::{Holder, Proof, State, Status};
use crate::key::Key;
use crate::record::Record;
use crate::stop::Stopped;

/// Value of the field `stop_event` in the lock record of an owner that honours stop requests in the
/// store.
pub(crate) const STOP_EVENT: &str = "lease";
/// Interval between two reads of a lease while its owner is asked to stop.
const STOP_POLL: Duration = Duration::from_millis(100);

/// Returns the status of a key in a lease store.
pub(crate) fn status(store: &LeaseStore, key: &Key) -> Result<Status, Error> {
    let entry = read(store, key)?;
    Ok(to_status(store, key, entry))
}

/// Returns the status of every key with a lease in the store.
pub(crate) fn list(store: &LeaseStore) -> Result<Vec<Status>, Error> {
    let entries = store.backend.list(REQUEST_TIMEOUT).map_err(|error| {
        Error::new(Kind::Store {
            act: "list the leases of",
            key: "all keys".to_owned(),
            store: store.url().to_owned(),
            why: error.why,
            transient: error.transient,
        })
    })?;
    let mut found: Vec<Status> = entries
        .into_iter()
        .filter_map(|(name, entry)| Some(to_status(store, &key_from_store(&name)?, Some(entry))))
        .collect();
    found.sort_by_key(|status| status.key.to_string());
    Ok(found)
}

/// Asks the owner of a key to release it, through a request that is stored next to its lease, and
/// waits until the key has another owner or none.
pub(crate) fn stop(
    store: &LeaseStore,
    key: &Key,
    timeout: Duration,
    ask: bool,
) -> Result<Stopped, Error> {
    let Some(before) = read(store, key)? else {
        return Ok(Stopped::NotRunning);
    };
    let asked = holder(store, key, &before);
    if ask {
        let honours = asked
            .record
            .as_ref()
            .is_some_and(|record| record.stop_event.as_deref() == Some(STOP_EVENT));
        if !honours {
            return Err(Error::new(Kind::StopRefused {
                key: key.to_string(),
                why: format!(
                    "it is held by {asked}, which does not accept stop requests through the store; \
                     stop it on its host"
                ),
            }));
        }
        let name = store_key(key)?;
        let stored = store
            .backend
            .request_stop(&name, &before.owner, REQUEST_TIMEOUT)
            .map_err(|error| store.error("store a stop request for", key, error))?;
        if !stored {
            return Ok(Stopped::Released {
                holder: Box::new(asked),
            });
        }
    }
    let deadline = Instant::now().checked_add(timeout);
    loop {
        let left = deadline.map_or(Duration::MAX, |deadline| {
            deadline.saturating_duration_since(Instant::now())
        });
        let now = match read(store, key) {
            Ok(now) => now,
            Err(error) if left.is_zero() => return Err(error),
            Err(_) => Some(before.clone()),
        };
        if now.is_none_or(|now| now.owner != before.owner) {
            return Ok(Stopped::Released {
                holder: Box::new(asked),
            });
        }
        if left.is_zero() {
            return Err(Error::new(Kind::StillHeld {
                key: key.to_string(),
                holder: asked,
                timeout,
            }));
        }
        thread::sleep(STOP_POLL.min(left));
    }
}

/// Returns the holder that a lease in the store describes. Another process wrote the text of its
/// lock record, so the text is sanitized.
pub(super) fn holder(store: &LeaseStore, key: &Key, entry: &Entry) -> Holder {
    let mut record = Record::decode(&entry.record).ok();
    if let Some(record) = &mut record {
        let user = record.user.take();
        record.sanitize_foreign();
        record.user = user;
        record.token = entry.token;
    }
    let mut holder = Holder::unknown(store.path_of(key));
    holder.proof = Proof::Lease;
    holder.record = record;
    holder.expires_in = entry.expires_in;
    holder
}

fn read(store: &LeaseStore, key: &Key) -> Result<Option<Entry>, Error> {
    let name = store_key(key)?;
    store
        .backend
        .read(&name, REQUEST_TIMEOUT)
        .map_err(|error: StoreError| store.error("inspect", key, error))
}

fn to_status(store: &LeaseStore, key: &Key, entry: Option<Entry>) -> Status {
    Status {
        key: key.clone(),
        path: store.path_of(key),
        state: match entry {
            Some(entry) => State::Held(Box::new(holder(store, key, &entry))),
            None => State::Free,
        },
    }
}
