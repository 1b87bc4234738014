//! Requests to the members of an etcd cluster, and what they mean for a lease.

use std::collections::HashMap;
use std::future::Future;
use std::hash::BuildHasher;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use etcd_client::{
    Client, Compare, CompareOp, ConnectOptions, GetOptions, KeyValue, LeaseGrantOptions,
    PutOptions, ResponseHeader, Txn, TxnOp, TxnOpResponse,
};
use tokio::runtime::Handle;
use tokio::time::Instant;

use super::super::backend::{Attempt, Entry, Grant, LeaseId, StoreError};
use super::errors::{FAILED_PRECONDITION, NOT_FOUND, is_status, to_store_error, unexpected};

/// Number of keys that one response of a list contains. It keeps the response below the maximum
/// size of a message, 4 MiB.
pub(super) const PAGE: i64 = 1000;
/// Maximum time for the revocation of a lease that no key uses.
const REVOKE_TIMEOUT: Duration = Duration::from_secs(5);

/// Connections to the members of an etcd cluster, each of which can serve every request.
pub(super) struct Cluster {
    members: Vec<Member>,
    /// Index of the member that responded last. Requests start with it.
    current: AtomicUsize,
    options: ConnectOptions,
    pub(super) prefix: String,
    /// Etcd leases of owners whose last attempt has an unknown outcome. The next attempt uses the
    /// same etcd lease, and a release revokes it.
    unsettled: Mutex<HashMap<String, i64>>,
    handle: Handle,
}

pub(super) struct Member {
    url: String,
    /// Open connection to the member; `None` after a request on it failed.
    client: Mutex<Option<Client>>,
}

/// A lease as the cluster has stored it.
pub(super) struct Held {
    pub(super) entry: Entry,
    pub(super) lease: i64,
}

/// Outcome of the transaction that creates the keys of an owner.
enum Created {
    InRevision(Option<i64>),
    Exists(Vec<KeyValue>),
    /// The etcd lease that the keys should be attached to does not exist.
    NoLease,
}

impl Cluster {
    pub(super) fn new(
        members: Vec<Member>,
        options: ConnectOptions,
        prefix: String,
        handle: Handle,
    ) -> Self {
        Self {
            members,
            current: AtomicUsize::new(0),
            options,
            prefix,
            unsettled: Mutex::new(HashMap::new()),
            handle,
        }
    }

    pub(super) fn key(&self, key: &str, field: &str) -> String {
        format!("{}/{key}/{field}", self.prefix)
    }

    pub(super) fn unsettled(&self) -> MutexGuard<'_, HashMap<String, i64>> {
        self.unsettled
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) async fn acquire(
        self: &Arc<Self>,
        id: &LeaseId,
        record: &[u8],
        end: Instant,
    ) -> Result<Attempt, StoreError> {
        // If the key has an owner, the attempt ends after this read, without a write to the
        // cluster.
        if let Some(held) = self.read(&id.key, end).await? {
            return self.settle(id, held, end).await;
        }
        let lease = *self
            .unsettled()
            .entry(id.owner.clone())
            .or_insert_with(random_lease);
        if !self.grant(lease, id.ttl, end).await? {
            // The etcd lease exists already: an earlier attempt created it, and it may be about to
            // expire, so it is renewed first.
            let alive = self.keep_alive(lease, end).await?;
            if !alive {
                self.unsettled().remove(&id.owner);
                return Err(StoreError::transient(
                    "the lease expired while it was acquired",
                ));
            }
        }
        match self.create(id, lease, record, end).await? {
            Created::InRevision(revision) => {
                let revision = revision.ok_or_else(unexpected)?;
                self.unsettled().remove(&id.owner);
                Ok(Attempt::Acquired(Grant {
                    token: to_token(revision),
                    lease,
                }))
            }
            Created::Exists(kvs) => {
                let held = held(&kvs).ok_or_else(unexpected)?;
                self.settle(id, held, end).await
            }
            Created::NoLease => {
                self.unsettled().remove(&id.owner);
                Err(StoreError::transient(
                    "the lease expired while it was acquired",
                ))
            }
        }
    }

    /// Returns the outcome of an attempt that found the key held. If this very owner holds it, an
    /// earlier attempt succeeded; otherwise the key is held by another owner.
    async fn settle(
        self: &Arc<Self>,
        id: &LeaseId,
        held: Held,
        end: Instant,
    ) -> Result<Attempt, StoreError> {
        if held.entry.owner != id.owner {
            if let Some(lease) = self.unsettled().remove(&id.owner) {
                let cluster = Arc::clone(self);
                self.handle.spawn(async move {
                    // A failed revocation is harmless: the unused etcd lease expires by itself.
                    let end = Instant::now() + REVOKE_TIMEOUT;
                    let _ = cluster.revoke(lease, end).await;
                });
            }
            return Ok(Attempt::Held(held.entry));
        }
        // The key names this owner already: an earlier attempt succeeded, but its response was
        // lost.
        if !self.keep_alive(held.lease, end).await? {
            return Err(StoreError::transient(
                "the lease expired while it was acquired",
            ));
        }
        self.unsettled().remove(&id.owner);
        Ok(Attempt::Acquired(Grant {
            token: held.entry.token,
            lease: held.lease,
        }))
    }

    /// Creates an etcd lease with the given id. Returns false if it exists already, because an
    /// earlier request succeeded whose response was lost.
    async fn grant(&self, lease: i64, ttl: Duration, end: Instant) -> Result<bool, StoreError> {
        let seconds = seconds(ttl);
        let granted = self
            .run(end, |mut client| async move {
                let options = LeaseGrantOptions::new().with_id(lease);
                match client.lease_grant(seconds, Some(options)).await {
                    Ok(response) => Ok(Some(response.ttl())),
                    Err(error) if is_status(&error, FAILED_PRECONDITION, "already exists") => {
                        Ok(None)
                    }
                    Err(error) => Err(error),
                }
            })
            .await?;
        match granted {
            Some(granted) if granted < seconds => Err(StoreError::fatal(format!(
                "the server granted a lease of {granted} s instead of {seconds} s"
            ))),
            granted => Ok(granted.is_some()),
        }
    }

    /// Creates the etcd keys of an owner in one transaction, unless the key has an owner.
    async fn create(
        &self,
        id: &LeaseId,
        lease: i64,
        record: &[u8],
        end: Instant,
    ) -> Result<Created, StoreError> {
        let owner = self.key(&id.key, "owner");
        let attached = Some(PutOptions::new().with_lease(lease));
        let create = Txn::new()
            .when([Compare::create_revision(owner.clone(), CompareOp::Equal, 0)])
            .and_then([
                TxnOp::put(owner, id.owner.clone(), attached.clone()),
                TxnOp::put(self.key(&id.key, "record"), record, attached),
                // Deletes a request to stop an earlier owner, so that it does not stop the new one.
                TxnOp::delete(self.key(&id.key, "stop"), None),
            ])
            .or_else([TxnOp::get(
                self.key(&id.key, ""),
                Some(GetOptions::new().with_prefix()),
            )]);
        self.run(end, |mut client| {
            let create = create.clone();
            async move {
                match client.txn(create).await {
                    Ok(response) if response.succeeded() => {
                        let revision = response.header().map(ResponseHeader::revision);
                        Ok(Created::InRevision(revision))
                    }
                    Ok(response) => Ok(Created::Exists(key_values(&response.op_responses()))),
                    Err(error) if is_status(&error, NOT_FOUND, "lease not found") => {
                        Ok(Created::NoLease)
                    }
                    Err(error) => Err(error),
                }
            }
        })
        .await
    }

    /// Extends an etcd lease to its whole TTL. Returns false if the lease does not exist, which
    /// means that its owner has lost the key.
    pub(super) async fn keep_alive(&self, lease: i64, end: Instant) -> Result<bool, StoreError> {
        self.run(end, |mut client| async move {
            // `lease_keep_alive` returns only after the first response, so the lease is renewed.
            match client.lease_keep_alive(lease).await {
                Ok(_) => Ok(true),
                Err(etcd_client::Error::LeaseKeepAliveError(why)) if why == "lease not found" => {
                    Ok(false)
                }
                Err(error) => Err(error),
            }
        })
        .await
    }

    /// Ends an etcd lease. etcd then deletes the keys that are attached to it, which frees the key
    /// of its owner.
    pub(super) async fn revoke(&self, lease: i64, end: Instant) -> Result<(), StoreError> {
        self.run(end, |mut client| async move {
            match client.lease_revoke(lease).await {
                Ok(_) => Ok(()),
                Err(error) if is_status(&error, NOT_FOUND, "lease not found") => Ok(()),
                Err(error) => Err(error),
            }
        })
        .await
    }

    pub(super) async fn read(&self, key: &str, end: Instant) -> Result<Option<Held>, StoreError> {
        let start = self.key(key, "");
        let response = self
            .run(end, |mut client| {
                let start = start.clone();
                let options = GetOptions::new().with_prefix().with_limit(PAGE);
                async move { client.get(start, Some(options)).await }
            })
            .await?;
        Ok(held(response.kvs()))
    }

    /// Writes an etcd key that is attached to the lease of this owner. Returns false if this owner
    /// has no lease.
    pub(super) async fn write_if_owner(
        &self,
        key: &str,
        owner: &str,
        held: &Held,
        write: impl FnOnce(Option<PutOptions>) -> TxnOp,
        end: Instant,
    ) -> Result<bool, StoreError> {
        if held.entry.owner != owner {
            return Ok(false);
        }
        let owner_key = self.key(key, "owner");
        let write = Txn::new()
            .when([
                Compare::value(owner_key.clone(), CompareOp::Equal, owner),
                Compare::lease(owner_key, CompareOp::Equal, held.lease),
            ])
            .and_then([write(Some(PutOptions::new().with_lease(held.lease)))]);
        self.run(end, |mut client| {
            let write = write.clone();
            async move {
                match client.txn(write).await {
                    Ok(response) => Ok(response.succeeded()),
                    Err(error) if is_status(&error, NOT_FOUND, "lease not found") => Ok(false),
                    Err(error) => Err(error),
                }
            }
        })
        .await
    }

    /// Sends a request to the member that responded last, and after a failure to each other member.
    /// Every request may be repeated (see `Backend`).
    pub(super) async fn run<T, F>(
        &self,
        end: Instant,
        request: impl Fn(Client) -> F,
    ) -> Result<T, StoreError>
    where
        F: Future<Output = Result<T, etcd_client::Error>>,
    {
        let mut untried = u32::try_from(self.members.len()).unwrap_or(u32::MAX);
        let mut may_reuse = true;
        loop {
            let index = self.current.load(Ordering::Relaxed) % self.members.len();
            let Some(member) = self.members.get(index) else {
                return Err(unexpected());
            };
            let idle = member.client().clone().filter(|_| may_reuse);
            let reused = idle.is_some();
            // Each member gets an equal share of the remaining time, so that a member that does not
            // respond leaves time for the other members.
            let share = end.saturating_duration_since(Instant::now()) / untried.max(1);
            let exchange = async {
                let client = match idle {
                    Some(client) => client,
                    None => member.connect(&self.options).await?,
                };
                request(client).await
            };
            let (error, timed_out) = match tokio::time::timeout(share, exchange).await {
                Ok(Ok(response)) => return Ok(response),
                Ok(Err(error)) => (to_store_error(&error), false),
                Err(_) => (StoreError::timeout(share), true),
            };
            if !error.transient {
                return Err(error);
            }
            // The member at the other end of the connection may be down, so the next request opens
            // a new connection.
            member.client().take();
            may_reuse = !reused || timed_out;
            if !may_reuse {
                // A reused connection may have been closed by the server, for example at a restart.
                // The same member is then tried once more with a new connection.
                continue;
            }
            let next = (index + 1) % self.members.len();
            self.current.store(next, Ordering::Relaxed);
            untried = untried.saturating_sub(1);
            if untried == 0 {
                return Err(error);
            }
        }
    }
}

impl Member {
    pub(super) fn new(url: String) -> Self {
        Self {
            url,
            client: Mutex::new(None),
        }
    }

    fn client(&self) -> MutexGuard<'_, Option<Client>> {
        self.client.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn connect(&self, options: &ConnectOptions) -> Result<Client, etcd_client::Error> {
        let client = Client::connect([&self.url], Some(options.clone())).await?;
        *self.client() = Some(client.clone());
        Ok(client)
    }
}

/// Returns a random id for an etcd lease. Never 0, because the server would then choose the id
/// itself.
fn random_lease() -> i64 {
    let random = std::hash::RandomState::new().hash_one(0);
    i64::try_from(random >> 1).unwrap_or(i64::MAX).max(1)
}

/// Reads a lease from the etcd keys of a key. Returns `None` if the key has no owner.
pub(super) fn held(kvs: &[KeyValue]) -> Option<Held> {
    let field = |name: &str| {
        kvs.iter()
            .find(|kv| kv.key().rsplit(|byte| *byte == b'/').next() == Some(name.as_bytes()))
    };
    let owner = field("owner")?;
    Some(Held {
        entry: Entry {
            owner: String::from_utf8_lossy(owner.value()).into_owned(),
            token: to_token(owner.create_revision()),
            record: field("record").map_or_else(Vec::new, |record| record.value().to_vec()),
            expires_in: None,
        },
        lease: owner.lease(),
    })
}

/// Returns the etcd keys and values that the first operation of a transaction has read.
pub(super) fn key_values(responses: &[TxnOpResponse]) -> Vec<KeyValue> {
    match responses.first() {
        Some(TxnOpResponse::Get(response)) => response.kvs().to_vec(),
        _ => Vec::new(),
    }
}

fn to_token(revision: i64) -> u64 {
    u64::try_from(revision).unwrap_or(0)
}

/// Returns the TTL of an etcd lease in whole seconds. It is rounded up, so that the etcd lease
/// never ends before the lease of the owner.
fn seconds(ttl: Duration) -> i64 {
    let whole = ttl.as_secs() + u64::from(ttl.subsec_nanos() > 0);
    i64::try_from(whole).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ttl_is_rounded_up_to_whole_seconds() {
        assert_eq!(seconds(Duration::from_secs(3)), 3);
        assert_eq!(seconds(Duration::from_millis(3001)), 4);
    }
}
