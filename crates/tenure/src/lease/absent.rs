//! Stand-ins for lease stores in a build without any of them. No value of these types exists, so
//! that none of their operations is ever called.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crate::error::Error;
use crate::holder::{Holder, Status};
use crate::key::Key;
use crate::record::Record;
use crate::stop::Stopped;
use crate::store_url;

/// Value of the field `stop_event` in the lock record of an owner that reads stop requests in its
/// lease store. Owners without this value get none.
pub(crate) const STOP_EVENT: &str = "lease";

/// State of a lease. This build contains no lease store, so no value exists: enable one of the
/// features `redis`, `dynamodb` and `etcd`.
// A struct with a private field, not an empty enum: the compiler would report code that uses a
// value of an empty enum as unreachable.
#[derive(Clone, Debug)]
pub struct LeaseState {
    _private: (),
}

impl LeaseState {
    /// True if the lease can have passed to another owner.
    pub fn is_lost(&self) -> bool {
        true
    }

    /// Point in time from which the lease counts as lost.
    pub fn deadline(&self) -> Option<Duration> {
        None
    }

    /// True if `stop` has asked this owner to release the key.
    pub fn is_stop_requested(&self) -> bool {
        false
    }

    /// Waits until the deadline changes, the lease is lost, or a stop is requested.
    pub fn wait_for_change(&self, _known: Option<Duration>, _limit: Duration) {}
}

#[derive(Clone, Debug)]
pub(crate) enum LeaseStore {}

impl LeaseStore {
    pub(crate) fn connect(url: &str) -> Result<Self, Error> {
        let scheme = url.split("://").next().unwrap_or_default();
        let shown = format!("{}://", crate::text::sanitize_name(scheme.to_owned()));
        Err(store_url::unknown_scheme(scheme, &shown))
    }

    pub(crate) fn url(&self) -> &str {
        match *self {}
    }

    pub(crate) fn identity(&self) -> String {
        match *self {}
    }

    pub(crate) fn path_of(&self, _key: &Key) -> PathBuf {
        match *self {}
    }
}

#[derive(Debug)]
pub(crate) enum Lease {}

impl Lease {
    pub(crate) fn path(&self) -> &Path {
        match *self {}
    }

    pub(crate) fn state(&self) -> &LeaseState {
        match *self {}
    }

    pub(crate) fn shared_state(&self) -> Option<LeaseState> {
        match *self {}
    }

    pub(crate) fn write(&self, _record: &Record) -> Result<(), Error> {
        match *self {}
    }

    pub(crate) fn release(self) -> Result<(), Error> {
        match self {}
    }

    pub(crate) fn abandon(self) {
        match self {}
    }
}

#[derive(Debug)]
#[expect(dead_code, reason = "no build without lease stores reads the fields")]
pub(crate) struct LeaseRequest<'a> {
    pub(crate) store: &'a LeaseStore,
    pub(crate) key: &'a Key,
    pub(crate) ttl: Option<Duration>,
    pub(crate) record: &'a Record,
}

#[expect(dead_code, reason = "no build without lease stores reads the fields")]
pub(crate) enum Patience<'a> {
    None,
    Until(
        Option<Instant>,
        &'a mut dyn FnMut(&Holder),
        &'a dyn Fn() -> bool,
    ),
}

pub(crate) fn acquire(
    request: &LeaseRequest<'_>,
    _patience: &mut Patience<'_>,
) -> Result<(Lease, u64), Error> {
    match *request.store {}
}

pub(crate) fn status(store: &LeaseStore, _key: &Key) -> Result<Status, Error> {
    match *store {}
}

pub(crate) fn list(store: &LeaseStore) -> Result<Vec<Status>, Error> {
    match *store {}
}

pub(crate) fn stop(
    store: &LeaseStore,
    _key: &Key,
    _timeout: Duration,
    _ask: bool,
) -> Result<Stopped, Error> {
    match *store {}
}
