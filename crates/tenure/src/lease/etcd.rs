//! Leases in etcd.
//!
//! A held key has two keys in etcd, `PREFIX/KEY/owner` with the owner id and `PREFIX/KEY/record` with
//! the lock record. A stop request is a third one, `PREFIX/KEY/stop`, with the id of the owner that
//! it addresses. All are attached to one etcd lease, so that they vanish together with it. The token is
//! the revision in which the first was created, which etcd increases with every write.
//!
//! The id of the etcd lease is chosen here, so that a grant whose response was lost can be repeated.
//! An id is never used again after its revocation was sent: a late revocation would end a new lease.

use std::collections::HashMap;
use std::error::Error as _;
use std::fmt;
use std::future::Future;
use std::hash::BuildHasher;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc};
use std::time::Duration;

use etcd_client::{
    Certificate, Client, Compare, CompareOp, ConnectOptions, GetOptions, Identity, KeyValue,
    LeaseGrantOptions, PutOptions, ResponseHeader, TlsOptions, Txn, TxnOp, TxnOpResponse,
    WatchFilterType, WatchOptions, WatchStream,
};
use tokio::runtime::Handle;
use tokio::task::JoinHandle;
use tokio::time::Instant;

use super::backend::{
    Attempt, Backend, Entry, Grant, LeaseId, MAX_LISTED, Renewed, StoreError, Waiter,
};
use super::bridge::{Bridge, describe_sources};
use super::url::StoreUrl;
use crate::error::Error;

const DEFAULT_PORT: u16 = 2379;
/// Number of keys that one response of a list contains. It keeps the response below the maximum
/// size of a message, 4 MiB.
const PAGE: i64 = 1000;
/// Maximum time for the revocation of a lease that no key uses.
const REVOKE_TIMEOUT: Duration = Duration::from_secs(5);

/// Client of one etcd cluster.
pub(super) struct Etcd {
    cluster: Arc<Cluster>,
    bridge: Bridge,
}

/// The members of a cluster, and the connections to them.
struct Cluster {
    members: Vec<Member>,
    /// Index of the member that responded last. Requests start with it.
    current: AtomicUsize,
    options: ConnectOptions,
    prefix: String,
    /// Etcd leases of owners whose last attempt has an unknown outcome. The next attempt uses the
    /// same etcd lease, and a release revokes it.
    unsettled: Mutex<HashMap<String, i64>>,
    handle: Handle,
}

struct Member {
    url: String,
    /// Connection, until a request fails on it.
    client: Mutex<Option<Client>>,
}

impl Etcd {
    pub(super) fn connect(url: &StoreUrl) -> Result<Self, Error> {
        let mut url = url.clone();
        let options = connect_options(&mut url)?;
        url.finish("`cacert`, `cert`, `key` and `password_file`")?;
        let scheme = if url.scheme == "etcds" {
            "https"
        } else {
            "http"
        };
        let members = url
            .address
            .split(',')
            .map(|address| Member {
                url: format!("{scheme}://{}", with_port(address)),
                client: Mutex::new(None),
            })
            .collect();
        let prefix = url.path.trim_matches('/');
        let bridge = Bridge::start()
            .map_err(|error| url.bad(&format!("cannot start its thread: {error}")))?;
        let cluster = Arc::new(Cluster {
            members,
            current: AtomicUsize::new(0),
            options,
            prefix: if prefix.is_empty() { "tenure" } else { prefix }.to_owned(),
            unsettled: Mutex::new(HashMap::new()),
            handle: bridge.handle().clone(),
        });
        Ok(Self { cluster, bridge })
    }

    /// Runs requests to the cluster. All of them together end before `limit`.
    fn call<T, F>(
        &self,
        limit: Duration,
        requests: impl FnOnce(Arc<Cluster>, Instant) -> F,
    ) -> Result<T, StoreError>
    where
        T: Send + 'static,
        F: Future<Output = Result<T, StoreError>> + Send + 'static,
    {
        let end = Instant::now() + limit;
        let future = requests(Arc::clone(&self.cluster), end);
        self.bridge.call(limit, future)
    }
}

impl Drop for Etcd {
    fn drop(&mut self) {
        if self.bridge.is_forked() {
            // Closing the copied connections would end the TLS sessions of the parent.
            std::mem::forget(Arc::clone(&self.cluster));
        }
    }
}

impl fmt::Debug for Etcd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Etcd")
            .field("prefix", &self.cluster.prefix)
            .finish_non_exhaustive()
    }
}

impl Backend for Etcd {
    fn try_acquire(
        &self,
        id: &LeaseId,
        record: &[u8],
        limit: Duration,
    ) -> Result<Attempt, StoreError> {
        let (id, record) = (id.clone(), record.to_vec());
        self.call(limit, |cluster, end| async move {
            cluster.acquire(&id, &record, end).await
        })
    }

    fn renew(&self, id: &LeaseId, grant: &Grant, limit: Duration) -> Result<Renewed, StoreError> {
        let (id, grant) = (id.clone(), grant.clone());
        self.call(limit, |cluster, end| async move {
            if !cluster.keep_alive(grant.lease, end).await? {
                return Ok(Renewed::NotOwner);
            }
            // The etcd lease can live on although its keys were deleted or overwritten.
            let owner = cluster.key(&id.key, "owner");
            let stop = cluster.key(&id.key, "stop");
            let created = i64::try_from(grant.token).unwrap_or(i64::MAX);
            let read = Txn::new()
                .when([
                    Compare::create_revision(owner.clone(), CompareOp::Equal, created),
                    Compare::value(owner.clone(), CompareOp::Equal, id.owner.clone()),
                    Compare::lease(owner, CompareOp::Equal, grant.lease),
                ])
                .and_then([TxnOp::get(stop, None)]);
            let response = cluster
                .run(end, |mut client| {
                    let read = read.clone();
                    async move { client.txn(read).await }
                })
                .await?;
            if !response.succeeded() {
                return Ok(Renewed::NotOwner);
            }
            let stop = key_values(&response.op_responses());
            Ok(Renewed::Extended {
                stop_requested: stop
                    .first()
                    .is_some_and(|kv| kv.value() == id.owner.as_bytes()),
            })
        })
    }

    fn write_record(
        &self,
        id: &LeaseId,
        record: &[u8],
        limit: Duration,
    ) -> Result<bool, StoreError> {
        let (id, record) = (id.clone(), record.to_vec());
        self.call(limit, |cluster, end| async move {
            let Some(held) = cluster.read(&id.key, end).await? else {
                return Ok(false);
            };
            let write = |lease| TxnOp::put(cluster.key(&id.key, "record"), record, lease);
            cluster
                .write_if_owner(&id.key, &id.owner, &held, write, end)
                .await
        })
    }

    fn release(&self, id: &LeaseId, limit: Duration) -> Result<(), StoreError> {
        let id = id.clone();
        self.call(limit, |cluster, end| async move {
            let unsettled = cluster.unsettled().remove(&id.owner);
            let held = cluster.read(&id.key, end).await;
            let held = match held {
                Ok(held) => held
                    .filter(|held| held.entry.owner == id.owner)
                    .map(|held| held.lease),
                // The revocation may still succeed.
                Err(_) if unsettled.is_some() => None,
                Err(error) => return Err(error),
            };
            for lease in [held, unsettled.filter(|_| unsettled != held)]
                .into_iter()
                .flatten()
            {
                cluster.revoke(lease, end).await?;
            }
            Ok(())
        })
    }

    fn read(&self, key: &str, limit: Duration) -> Result<Option<Entry>, StoreError> {
        let key = key.to_owned();
        self.call(limit, |cluster, end| async move {
            let Some(held) = cluster.read(&key, end).await? else {
                return Ok(None);
            };
            let remaining = cluster
                .run(end, |mut client| async move {
                    client.lease_time_to_live(held.lease, None).await
                })
                .await;
            let mut entry = held.entry;
            entry.expires_in = remaining
                .ok()
                .and_then(|response| u64::try_from(response.ttl()).ok())
                .map(Duration::from_secs);
            Ok(Some(entry))
        })
    }

    fn list(&self, limit: Duration) -> Result<Vec<(String, Entry)>, StoreError> {
        let prefix = format!("{}/", self.cluster.prefix);
        let end_of_prefix = format!("{}0", self.cluster.prefix); // '0' follows '/'.
        let mut start = prefix.clone().into_bytes();
        let mut found: Vec<(String, Vec<KeyValue>)> = Vec::new();
        loop {
            let (from, to) = (start.clone(), end_of_prefix.clone());
            let page = self.call(limit, |cluster, end| async move {
                let options = GetOptions::new().with_range(to).with_limit(PAGE);
                cluster
                    .run(end, |mut client| {
                        let (from, options) = (from.clone(), options.clone());
                        async move { client.get(from, Some(options)).await }
                    })
                    .await
            })?;
            for kv in page.kvs() {
                let name = kv
                    .key_str()
                    .ok()
                    .and_then(|key| key.strip_prefix(&prefix)?.rsplit_once('/'));
                let Some((name, _)) = name else { continue };
                match found.last_mut() {
                    Some((last, kvs)) if last == name => kvs.push(kv.clone()),
                    _ => found.push((name.to_owned(), vec![kv.clone()])),
                }
            }
            let Some(last) = page.kvs().last().filter(|_| page.more()) else {
                break;
            };
            if found.len() > MAX_LISTED {
                break;
            }
            start = last.key().to_vec();
            start.push(0);
        }
        Ok(found
            .into_iter()
            .filter_map(|(name, kvs)| Some((name, held(&kvs)?.entry)))
            .take(MAX_LISTED)
            .collect())
    }

    fn request_stop(&self, key: &str, owner: &str, limit: Duration) -> Result<bool, StoreError> {
        let (key, owner) = (key.to_owned(), owner.to_owned());
        self.call(limit, |cluster, end| async move {
            let Some(held) = cluster.read(&key, end).await? else {
                return Ok(false);
            };
            let write = |lease| TxnOp::put(cluster.key(&key, "stop"), owner.as_str(), lease);
            cluster
                .write_if_owner(&key, &owner, &held, write, end)
                .await
        })
    }

    fn waiter(&self, key: &str, limit: Duration) -> Result<Box<dyn Waiter>, StoreError> {
        let owner = self.cluster.key(key, "owner");
        let stream = self.call(limit, |cluster, end| async move {
            cluster
                .run(end, |mut client| {
                    let owner = owner.clone();
                    async move {
                        let options = WatchOptions::new().with_filters([WatchFilterType::NoPut]);
                        let mut stream = client.watch(owner, Some(options)).await?;
                        // The first response confirms that the watch has started.
                        stream.message().await?;
                        Ok(stream)
                    }
                })
                .await
        })?;
        let (sender, events) = mpsc::channel();
        let task = self
            .bridge
            .handle()
            .spawn(forward_deletions(stream, sender));
        Ok(Box::new(Deletion { events, task }))
    }
}

/// Sends a message for each deletion of the watched key, and an error when the watch ends.
async fn forward_deletions(mut stream: WatchStream, sender: mpsc::Sender<Result<(), StoreError>>) {
    loop {
        let message = match stream.message().await {
            Ok(Some(response)) if response.canceled() => Err(StoreError::transient(format!(
                "the server canceled the watch: {}",
                crate::text::sanitize_name(response.cancel_reason().to_owned())
            ))),
            Ok(Some(response)) if response.events().is_empty() => continue,
            Ok(Some(_)) => Ok(()),
            Ok(None) => Err(StoreError::transient("the server ended the watch")),
            Err(error) => Err(to_store_error(&error)),
        };
        let ended = message.is_err();
        if sender.send(message).is_err() || ended {
            return;
        }
    }
}

/// Watch that reports when the key of an owner is deleted.
struct Deletion {
    events: Receiver<Result<(), StoreError>>,
    task: JoinHandle<()>,
}

impl Waiter for Deletion {
    fn wait(&mut self, limit: Duration) -> Result<(), StoreError> {
        match self.events.recv_timeout(limit) {
            Ok(event) => event,
            Err(RecvTimeoutError::Timeout) => Ok(()),
            Err(RecvTimeoutError::Disconnected) => {
                Err(StoreError::transient("the watch has ended"))
            }
        }
    }
}

impl Drop for Deletion {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// A lease as the cluster has it.
struct Held {
    entry: Entry,
    /// Id of the etcd lease.
    lease: i64,
}

/// Outcome of the transaction that creates the keys of an owner.
enum Created {
    InRevision(Option<i64>),
    Exists(Vec<KeyValue>),
    /// The etcd lease of the attempt does not exist.
    NoLease,
}

impl Cluster {
    fn key(&self, key: &str, field: &str) -> String {
        format!("{}/{key}/{field}", self.prefix)
    }

    fn unsettled(&self) -> MutexGuard<'_, HashMap<String, i64>> {
        self.unsettled
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    async fn acquire(
        self: &Arc<Self>,
        id: &LeaseId,
        record: &[u8],
        end: Instant,
    ) -> Result<Attempt, StoreError> {
        // A refused attempt ends here, without a write.
        if let Some(held) = self.read(&id.key, end).await? {
            return self.settle(id, held, end).await;
        }
        let lease = *self
            .unsettled()
            .entry(id.owner.clone())
            .or_insert_with(random_lease);
        if !self.grant(lease, id.ttl, end).await? {
            // The lease is from an earlier attempt and may be about to expire.
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

    /// Outcome of an attempt that found the key held, by this owner or by another one.
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
                    // Without it, the lease expires by itself.
                    let end = Instant::now() + REVOKE_TIMEOUT;
                    let _ = cluster.revoke(lease, end).await;
                });
            }
            return Ok(Attempt::Held(held.entry));
        }
        // An earlier attempt of this owner succeeded, but its response was lost.
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

    /// Creates an etcd lease. False: it exists already.
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

    /// Creates the keys of an owner, unless the key has an owner.
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
                // A request that addressed an earlier owner.
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

    /// Extends an etcd lease to its whole TTL. False: it does not exist.
    async fn keep_alive(&self, lease: i64, end: Instant) -> Result<bool, StoreError> {
        self.run(end, |mut client| async move {
            // The client waits for the first response.
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

    /// Ends an etcd lease, and deletes the keys that are attached to it.
    async fn revoke(&self, lease: i64, end: Instant) -> Result<(), StoreError> {
        self.run(end, |mut client| async move {
            match client.lease_revoke(lease).await {
                Ok(_) => Ok(()),
                Err(error) if is_status(&error, NOT_FOUND, "lease not found") => Ok(()),
                Err(error) => Err(error),
            }
        })
        .await
    }

    async fn read(&self, key: &str, end: Instant) -> Result<Option<Held>, StoreError> {
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

    /// Writes a key that is attached to the lease of this owner. False: this owner has no lease.
    async fn write_if_owner(
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
    async fn run<T, F>(&self, end: Instant, request: impl Fn(Client) -> F) -> Result<T, StoreError>
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
            // A member that does not respond leaves time for the others.
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
            // The connection may lead to a member that is gone, so the next request opens a new one.
            member.client().take();
            may_reuse = !reused || timed_out;
            if !may_reuse {
                // The server may have closed the connection, for example when it was restarted.
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
    fn client(&self) -> MutexGuard<'_, Option<Client>> {
        self.client.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn connect(&self, options: &ConnectOptions) -> Result<Client, etcd_client::Error> {
        let client = Client::connect([&self.url], Some(options.clone())).await?;
        *self.client() = Some(client.clone());
        Ok(client)
    }
}

/// Reads the credentials and the TLS files that the URL names.
fn connect_options(url: &mut StoreUrl) -> Result<ConnectOptions, Error> {
    let mut options = ConnectOptions::new()
        .with_require_leader(true)
        .with_auto_token_refresh(true);
    match (&url.user, &url.password) {
        (Some(user), Some(password)) => options = options.with_user(user, password),
        (None, None) => {}
        _ => {
            return Err(url.bad(
                "a user needs a password, and a password a user: \
                 etcd://USER@HOST:PORT?password_file=PATH",
            ));
        }
    }
    let [cacert, cert, key] = ["cacert", "cert", "key"].map(|option| url.take(option));
    if url.scheme != "etcds" {
        return if cacert.or(cert).or(key).is_some() {
            Err(url.bad("`cacert`, `cert` and `key` need a URL that starts with etcds://"))
        } else {
            Ok(options)
        };
    }
    let mut tls = match cacert {
        Some(path) => TlsOptions::new().ca_certificate(Certificate::from_pem(read_file(&path)?)),
        None => TlsOptions::new().with_enabled_roots(),
    };
    match (cert, key) {
        (Some(cert), Some(key)) => {
            tls = tls.identity(Identity::from_pem(read_file(&cert)?, read_file(&key)?));
        }
        (None, None) => {}
        _ => return Err(url.bad("`cert` and `key` must be given together")),
    }
    Ok(options.with_tls(tls))
}

fn read_file(path: &str) -> Result<Vec<u8>, Error> {
    std::fs::read(path)
        .map_err(|error| Error::io("read the TLS file", std::path::Path::new(path), error))
}

/// Adds the default port to an address without one.
fn with_port(address: &str) -> String {
    let host_end = address.rfind(']').unwrap_or(0);
    if address[host_end..].contains(':') {
        address.to_owned()
    } else {
        format!("{address}:{DEFAULT_PORT}")
    }
}

/// Returns a random id for an etcd lease. The server would choose one if it were 0.
fn random_lease() -> i64 {
    let random = std::hash::RandomState::new().hash_one(0);
    i64::try_from(random >> 1).unwrap_or(i64::MAX).max(1)
}

/// Reads a lease from the keys of its owner. `None`: there is no owner.
fn held(kvs: &[KeyValue]) -> Option<Held> {
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

/// Keys that the first operation of a transaction has read.
fn key_values(responses: &[TxnOpResponse]) -> Vec<KeyValue> {
    match responses.first() {
        Some(TxnOpResponse::Get(response)) => response.kvs().to_vec(),
        _ => Vec::new(),
    }
}

fn to_token(revision: i64) -> u64 {
    u64::try_from(revision).unwrap_or(0)
}

/// TTL of an etcd lease: whole seconds, rounded up, so that it never ends before the lease does.
fn seconds(ttl: Duration) -> i64 {
    let whole = ttl.as_secs() + u64::from(ttl.subsec_nanos() > 0);
    i64::try_from(whole).unwrap_or(i64::MAX)
}

// Codes of gRPC.
const INVALID_ARGUMENT: i32 = 3;
const NOT_FOUND: i32 = 5;
const PERMISSION_DENIED: i32 = 7;
const FAILED_PRECONDITION: i32 = 9;
const OUT_OF_RANGE: i32 = 11;
const UNIMPLEMENTED: i32 = 12;
const DATA_LOSS: i32 = 15;

/// True if the server responded with this code and a message that contains this text.
fn is_status(error: &etcd_client::Error, code: i32, text: &str) -> bool {
    match error {
        etcd_client::Error::GRpcStatus(status) => {
            i32::from(status.code()) == code && status.message().contains(text)
        }
        _ => false,
    }
}

fn to_store_error(error: &etcd_client::Error) -> StoreError {
    let etcd_client::Error::GRpcStatus(status) = error else {
        let invalid = matches!(
            error,
            etcd_client::Error::InvalidArgs(_) | etcd_client::Error::InvalidUri(_)
        );
        let why = match error {
            etcd_client::Error::TransportError(error) => describe_sources(error),
            error => describe_sources(error),
        };
        return if invalid {
            StoreError::fatal(why)
        } else {
            StoreError::transient(why)
        };
    };
    let code = i32::from(status.code());
    // The causes are those of the connection. A response of the server has none.
    let why = match status.source() {
        Some(cause) => describe_sources(cause),
        None => crate::text::sanitize_name(status.message().to_owned()),
    };
    if code == INVALID_ARGUMENT && why.contains("user name is empty") {
        return StoreError::fatal(
            "the server requires a user; write etcd://USER@HOST:PORT?password_file=PATH",
        );
    }
    // Another client changed users or roles in this moment. The next request has the new state.
    let is_outdated = why.contains("revision of auth store is old");
    let fatal = matches!(
        code,
        INVALID_ARGUMENT
            | PERMISSION_DENIED
            | FAILED_PRECONDITION
            | OUT_OF_RANGE
            | UNIMPLEMENTED
            | DATA_LOSS
    );
    if fatal && !is_outdated {
        StoreError::fatal(why)
    } else {
        StoreError::transient(why)
    }
}

fn unexpected() -> StoreError {
    StoreError::fatal("the server sent an unexpected response")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn address_without_a_port_gets_the_default_port() {
        assert_eq!(with_port("db"), "db:2379");
        assert_eq!(with_port("db:1"), "db:1");
        assert_eq!(with_port("[::1]"), "[::1]:2379");
        assert_eq!(with_port("[::1]:1"), "[::1]:1");
    }

    #[test]
    fn ttl_is_rounded_up_to_whole_seconds() {
        assert_eq!(seconds(Duration::from_secs(3)), 3);
        assert_eq!(seconds(Duration::from_millis(3001)), 4);
    }

    #[test]
    fn tls_files_are_rejected_without_tls() {
        let connect = |url: &str| Etcd::connect(&StoreUrl::parse(url).unwrap()).map(|_| ());
        let error = connect("etcd://h?cacert=/x").unwrap_err().to_string();
        assert!(error.contains("etcds://"), "{error}");
        let error = connect("etcds://h?cacert=/nowhere/x")
            .unwrap_err()
            .to_string();
        assert!(error.contains("/nowhere/x"), "{error}");
        let error = connect("etcds://h?cert=/x").unwrap_err().to_string();
        assert!(error.contains("together"), "{error}");
        let error = connect("etcd://joe@h").unwrap_err().to_string();
        assert!(error.contains("password_file"), "{error}");
        assert!(connect("etcd://h,h2:1/prefix").is_ok());
    }
}
