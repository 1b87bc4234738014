//! Ownership across machines: a key is held as a lease in a store that several machines reach.
//!
//! A lease is valid for a limited time, its TTL, and is renewed in the background. The owner counts
//! the time from before each request was sent, on a clock that also runs while the machine is
//! suspended, and subtracts a margin. It therefore considers the lease lost before the store can
//! grant it to another process.
//!
//! ```text
//! url -> Backend (redis, etcd, dynamodb) -> acquire -> Lease (renewal thread, LeaseState) -> release
//! ```
//!
//! - `backend`: the operations that every store implements
//! - `bridge`: blocking calls of async clients
//! - `url`: which store a URL names
//! - `observation`: expiry in a store that does not expire leases by itself
//! - `state`: the deadline of a lease, and the stop request
//! - `renewal`: the thread that renews a lease
//! - `acquire`: one attempt, or waiting
//! - `inspect`: holders as other machines see them, and stop requests

mod acquire;
mod backend;
#[cfg(any(feature = "etcd", feature = "dynamodb"))]
mod bridge;
#[cfg(feature = "dynamodb")]
mod dynamodb;
#[cfg(feature = "etcd")]
mod etcd;
#[cfg(test)]
mod fake;
mod inspect;
#[cfg(feature = "dynamodb")]
mod observation;
#[cfg(feature = "redis")]
mod redis;
mod renewal;
mod state;
mod url;

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use crate::error::{Error, Kind};
use crate::key::Key;
use crate::record::Record;

pub(crate) use acquire::{LeaseRequest, Patience, acquire};
use backend::{Backend, LeaseId, StoreError};
pub(crate) use inspect::{STOP_EVENT, list, status, stop};
use renewal::Renewal;
pub use state::LeaseState;

/// TTL of a lease if the claim does not state one.
const DEFAULT_TTL: Duration = Duration::from_secs(15);
/// Smallest TTL. A shorter lease would be lost at every short interruption of the network or of the
/// process.
const MIN_TTL: Duration = Duration::from_secs(1);
/// Largest TTL. The key of a crashed owner stays held until its TTL has passed, so the TTL must be
/// bounded.
const MAX_TTL: Duration = Duration::from_secs(24 * 60 * 60);
/// Maximum time for a request that is not bounded by a TTL, such as reading a status.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(5);

#[derive(Clone)]
pub(crate) struct LeaseStore {
    backend: Arc<dyn Backend>,
    /// URL of the store without credentials.
    url: Arc<str>,
}

impl LeaseStore {
    /// Connects to the store that the URL names.
    pub(crate) fn connect(url: &str) -> Result<Self, Error> {
        let (backend, url) = url::connect(url)?;
        Ok(Self {
            backend,
            url: url.into(),
        })
    }

    /// URL of the store without credentials.
    pub(crate) fn url(&self) -> &str {
        &self.url
    }

    /// URL of the store without credentials, with the options that decide in which store a key is.
    pub(crate) fn identity(&self) -> String {
        url::identity(&self.url, &self.backend.scope())
    }

    /// Returns the URL of the store and the name of the key in it. Messages show it in place of the
    /// path of a lock file.
    pub(crate) fn path_of(&self, key: &Key) -> PathBuf {
        let name = store_key(key).unwrap_or_default();
        PathBuf::from(format!("{}#{name}", self.url))
    }

    fn error(&self, act: &'static str, key: &Key, error: StoreError) -> Error {
        Error::new(Kind::Store {
            act,
            key: key.to_string(),
            store: self.url.to_string(),
            why: error.why,
            transient: error.transient,
        })
    }
}

impl fmt::Debug for LeaseStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("LeaseStore").field(&self.url).finish()
    }
}

/// Returns the name of a key in a store of leases. A key that is a path has no such name, because
/// the path means a different file on each machine.
fn store_key(key: &Key) -> Result<String, Error> {
    if key.own_path().is_some() {
        return Err(Error::new(Kind::BadKey {
            key: key.to_string(),
            why: "a path names a file of one machine; use a name or a port in a lease store",
        }));
    }
    let name = key.file_name().to_string_lossy().into_owned();
    Ok(name.strip_suffix(".lock").unwrap_or(&name).to_owned())
}

/// Returns the key that has this name in a store of leases.
fn key_from_store(name: &str) -> Option<Key> {
    Key::from_file_name(&format!("{name}.lock"))
}

/// Returns the TTL of a claim if it is within the limits, or the default TTL if the claim has none.
fn checked_ttl(ttl: Option<Duration>, key: &Key) -> Result<Duration, Error> {
    let ttl = ttl.unwrap_or(DEFAULT_TTL);
    if (MIN_TTL..=MAX_TTL).contains(&ttl) {
        Ok(ttl)
    } else {
        Err(Error::new(Kind::BadTtl {
            key: key.to_string(),
            ttl,
        }))
    }
}

/// A held lease. Dropping it stops the renewal, so that the lease expires.
#[derive(Debug)]
pub(crate) struct Lease {
    store: LeaseStore,
    key: Key,
    id: Arc<LeaseId>,
    state: LeaseState,
    path: PathBuf,
    /// Ends the renewal thread when it is dropped.
    renewal: Renewal,
}

impl Lease {
    pub(crate) fn path(&self) -> &std::path::Path {
        &self.path
    }

    pub(crate) fn state(&self) -> &LeaseState {
        &self.state
    }

    /// Returns the state of the lease, which other threads can check. In a build without lease
    /// stores there is no value of this type.
    pub(crate) fn shared_state(&self) -> Option<LeaseState> {
        Some(self.state.clone())
    }

    /// Replaces the lock record in the store. Fails if this process has lost the lease.
    pub(crate) fn write(&self, record: &Record) -> Result<(), Error> {
        let limit = self.id.request_timeout();
        match self
            .store
            .backend
            .write_record(&self.id, &record.encode(), limit)
        {
            Ok(true) => Ok(()),
            Ok(false) => {
                self.state.mark_lost();
                Err(self.store.error(
                    "write the lock record of",
                    &self.key,
                    StoreError::fatal("the lease has expired or belongs to another owner"),
                ))
            }
            Err(error) => Err(self
                .store
                .error("write the lock record of", &self.key, error)),
        }
    }

    /// Releases the lease in the store. If the request fails, the lease ends when its TTL has
    /// passed.
    pub(crate) fn release(self) -> Result<(), Error> {
        self.state.mark_lost();
        self.renewal.stop();
        self.store
            .backend
            .release(&self.id, self.id.request_timeout())
            .map_err(|error| {
                Error::new(Kind::Unreleased {
                    key: self.key.to_string(),
                    store: self.store.url.to_string(),
                    why: error.why,
                    ttl: self.id.ttl,
                })
            })
    }

    /// Ends the renewal without a request to the store. The lease then ends when its TTL has
    /// passed, as after a crash.
    pub(crate) fn abandon(self) {
        self.state.mark_lost();
        self.renewal.stop();
    }
}
