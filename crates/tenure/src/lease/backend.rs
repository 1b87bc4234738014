//! The operations that every store of leases implements, and their results.

use std::fmt::{self, Debug};
use std::time::Duration;

/// Number of requests that must fit into one TTL: one request may take at most this part of it, so
/// that a single lost packet does not cost the lease.
const REQUESTS_PER_TTL: u32 = 3;
/// Maximum time for one request, however long the TTL is.
const MAX_REQUEST: Duration = Duration::from_secs(5);

/// A store of leases. Each operation blocks for at most the time limit that its caller gives. Any
/// thread may call it, also a thread of an async runtime.
///
/// An error does not say whether the store has executed the request. Every request can therefore be
/// repeated: it names the owner, and the store compares the owner before it changes anything.
pub(crate) trait Backend: Send + Sync + Debug {
    /// Options that decide in which store a key is, without those that have their default value:
    /// `region=eu-west-1`. Part of the store's identity.
    fn scope(&self) -> Vec<(&'static str, String)> {
        Vec::new()
    }

    /// Acquires the lease if no other owner has it. Also succeeds if this very owner has it, because
    /// the response to an earlier request may have been lost.
    fn try_acquire(
        &self,
        id: &LeaseId,
        record: &[u8],
        limit: Duration,
    ) -> Result<Attempt, StoreError>;

    /// Extends the lease to its whole TTL, if this owner still has it.
    fn renew(&self, id: &LeaseId, grant: &Grant, limit: Duration) -> Result<Renewed, StoreError>;

    /// Replaces the lock record of the lease. Returns false if this owner no longer has the lease.
    fn write_record(
        &self,
        id: &LeaseId,
        record: &[u8],
        limit: Duration,
    ) -> Result<bool, StoreError>;

    /// Ends the lease if this owner still has it. The counter of tokens stays in the store, so that
    /// the next owner gets a larger token.
    fn release(&self, id: &LeaseId, limit: Duration) -> Result<(), StoreError>;

    /// Returns the current lease of a key, or `None` if the key is free.
    fn read(&self, key: &str, limit: Duration) -> Result<Option<Entry>, StoreError>;

    /// Returns the current leases of all keys, at most [`MAX_LISTED`], for `tenure status`.
    fn list(&self, limit: Duration) -> Result<Vec<(String, Entry)>, StoreError>;

    /// Stores a request to stop next to the lease of this owner, who reads it at the next renewal.
    /// Returns false if the owner no longer has the lease.
    fn request_stop(&self, key: &str, owner: &str, limit: Duration) -> Result<bool, StoreError>;

    /// Prepares to wait for the release of a key. The notification starts with this call, so that a
    /// release between it and the next attempt is not missed.
    fn waiter(&self, key: &str, limit: Duration) -> Result<Box<dyn Waiter>, StoreError>;
}

/// Subscription to the release of one key, so that a waiting claim need not poll the store.
pub(crate) trait Waiter {
    /// Returns after a notification that the key may be free, or after `limit`. In both cases the
    /// caller must try to acquire the key, since another process may be faster.
    fn wait(&mut self, limit: Duration) -> Result<(), StoreError>;
}

/// Maximum number of leases that [`Backend::list`] returns. It bounds the memory of `status`.
pub(crate) const MAX_LISTED: usize = 10_000;

/// Identity of a lease: each acquisition has an owner id of its own.
#[derive(Clone, Debug)]
pub(crate) struct LeaseId {
    pub(crate) key: String,
    /// Random id of this acquisition.
    pub(crate) owner: String,
    pub(crate) ttl: Duration,
}

impl LeaseId {
    pub(crate) fn request_timeout(&self) -> Duration {
        (self.ttl / REQUESTS_PER_TTL).min(MAX_REQUEST)
    }
}

/// Response of the store to an acquisition: the token of the lease, and the id that renews it.
#[derive(Clone, Debug)]
pub(crate) struct Grant {
    /// Fencing token.
    pub(crate) token: u64,
    /// Id of the lease in a store that has ids for leases (etcd).
    #[cfg_attr(
        not(feature = "etcd"),
        expect(dead_code, reason = "only etcd has ids for leases")
    )]
    pub(crate) lease: i64,
}

/// Outcome of an attempt to acquire a lease.
#[derive(Debug)]
pub(crate) enum Attempt {
    Acquired(Grant),
    /// Another owner has the lease, so the claim is refused or waits.
    Held(Entry),
    /// Another owner has the lease or has stopped renewing it, and the store does not show which
    /// (DynamoDB). The same attempt must be made again after `retry`, for at most one TTL, until
    /// that is known.
    #[cfg_attr(
        not(feature = "dynamodb"),
        expect(dead_code, reason = "only DynamoDB does not expire leases by itself")
    )]
    Unproven {
        entry: Entry,
        retry: Duration,
    },
}

/// The lease of a key as the store has it.
#[derive(Clone, Debug)]
pub(crate) struct Entry {
    pub(crate) owner: String,
    pub(crate) token: u64,
    /// Lock record as its owner wrote it. Other programs can write to the store, so the content is
    /// not trusted.
    pub(crate) record: Vec<u8>,
    /// Time until the lease expires unless it is renewed. `None` if the store does not report
    /// expiry times.
    pub(crate) expires_in: Option<Duration>,
}

/// Outcome of a renewal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Renewed {
    Extended {
        /// True if `stop` has asked this owner to release the key.
        stop_requested: bool,
    },
    /// This owner no longer has the lease.
    NotOwner,
}

/// Failure of a request to a store.
#[derive(Debug)]
pub(crate) struct StoreError {
    /// Reason, without credentials.
    pub(crate) why: String,
    /// True if the same request may succeed later: the store was unreachable or busy.
    pub(crate) transient: bool,
}

impl StoreError {
    /// Returns an error for a temporary failure: the same request may succeed later.
    pub(crate) fn transient(why: impl fmt::Display) -> Self {
        Self {
            why: without_error_numbers(&why.to_string()),
            transient: true,
        }
    }

    /// Returns an error for a permanent failure: every later request will fail too, so retries are
    /// useless.
    pub(crate) fn fatal(why: impl fmt::Display) -> Self {
        Self {
            why: without_error_numbers(&why.to_string()),
            transient: false,
        }
    }

    /// Returns the error for a request that the store did not respond to within the limit.
    pub(crate) fn timeout(limit: Duration) -> Self {
        Self::transient(format!("no response within {} ms", limit.as_millis()))
    }
}

/// Removes ` (os error N)` from the message of an I/O error: the number repeats the words in front
/// of it.
fn without_error_numbers(why: &str) -> String {
    let mut parts = why.split(" (os error ");
    let mut text = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        text.push_str(part.split_once(')').map_or("", |(_, rest)| rest));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reason_has_no_error_numbers() {
        let why = "tcp connect error: Connection refused (os error 111): gone (os error 1)";
        let error = StoreError::transient(why);
        assert_eq!(error.why, "tcp connect error: Connection refused: gone");
        assert_eq!(StoreError::fatal("no number").why, "no number");
    }
}
