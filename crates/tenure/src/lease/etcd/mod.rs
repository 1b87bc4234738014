//! Leases in etcd.
//!
//! A held key is stored under two keys of etcd: `PREFIX/KEY/owner` with the owner id and
//! `PREFIX/KEY/record` with the lock record. A stop request is stored under a third one,
//! `PREFIX/KEY/stop`, with the id of the owner that it addresses. All are attached to one etcd
//! lease, so that etcd deletes them together when the lease ends. The fencing token is the revision
//! in which the owner key was created; etcd increases the revision with every write.
//!
//! This client chooses the id of the etcd lease, so that it can repeat a grant whose response was
//! lost. An id is never used again after its revocation was sent: a late revocation would end a new
//! lease.

mod cluster;
mod errors;
mod options;

use std::fmt;
use std::future::Future;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::sync::{Arc, mpsc};
use std::time::Duration;

use etcd_client::{
    Compare, CompareOp, GetOptions, KeyValue, Txn, TxnOp, WatchFilterType, WatchOptions,
    WatchStream,
};
use tokio::task::JoinHandle;
use tokio::time::Instant;

use super::backend::{
    Attempt, Backend, Entry, Grant, LeaseId, MAX_LISTED, Renewed, StoreError, Waiter,
};
use super::bridge::Bridge;
use super::url::StoreUrl;
use crate::error::Error;
use cluster::{Cluster, PAGE, held, key_values};
use errors::to_store_error;

pub(super) struct Etcd {
    cluster: Arc<Cluster>,
    bridge: Bridge,
}

impl Etcd {
    pub(super) fn connect(url: &StoreUrl) -> Result<Self, Error> {
        let mut url = url.clone();
        let options = options::connect_options(&mut url)?;
        url.finish("`cacert`, `cert`, `key` and `password_file`")?;
        let prefix = url.path.trim_matches('/');
        let bridge = Bridge::start().map_err(|error| {
            url.bad(&format!(
                "cannot start the thread of the etcd client: {error}"
            ))
        })?;
        let prefix = if prefix.is_empty() { "tenure" } else { prefix };
        let handle = bridge.handle().clone();
        let cluster = Cluster::new(options::members(&url), options, prefix.to_owned(), handle);
        Ok(Self {
            cluster: Arc::new(cluster),
            bridge,
        })
    }

    /// Runs several requests to the cluster, which must all end within `limit`.
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
            // In a forked child the cluster is leaked: closing the child's copies of the parent's
            // connections would end the parent's TLS sessions.
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
            // The owner key is compared too: an etcd lease can outlive its keys if another client
            // deletes or overwrites them, and then this owner has lost the key.
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
                // The read failed, but the id of this owner's etcd lease is known from its last
                // attempt, so that lease is revoked all the same.
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
                        // The watch is active once its first response has arrived. Waiting for it
                        // ensures that no release is missed.
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
                "the etcd server canceled the watch for a release of the key: {}",
                crate::text::sanitize_name(response.cancel_reason().to_owned())
            ))),
            Ok(Some(response)) if response.events().is_empty() => continue,
            Ok(Some(_)) => Ok(()),
            Ok(None) => Err(StoreError::transient(
                "the etcd server ended the watch for a release of the key",
            )),
            Err(error) => Err(to_store_error(&error)),
        };
        let ended = message.is_err();
        if sender.send(message).is_err() || ended {
            return;
        }
    }
}

/// Watch of etcd that reports the deletion of a key's owner, which means that the key was released
/// or has expired.
struct Deletion {
    events: Receiver<Result<(), StoreError>>,
    task: JoinHandle<()>,
}

impl Waiter for Deletion {
    fn wait(&mut self, limit: Duration) -> Result<(), StoreError> {
        match self.events.recv_timeout(limit) {
            Ok(event) => event,
            Err(RecvTimeoutError::Timeout) => Ok(()),
            Err(RecvTimeoutError::Disconnected) => Err(StoreError::transient(
                "the watch for a release of the key has ended",
            )),
        }
    }
}

impl Drop for Deletion {
    fn drop(&mut self) {
        self.task.abort();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
