//! The table of all API keys of a running server, which finds the key of a client's secret.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use arc_swap::ArcSwap;
use foldhash::fast::FixedState;
use jiff::Timestamp;

use super::ApiKey;
use super::file::StoredKeys;
use super::hasher::{Hasher, KeyedHash, NoRandomness, PREFIX, random_bytes};
use super::memo::{FoundKey, SecretMemo};
use crate::config::{ConfiguredKey, ConfiguredSecret, MAX_SECRET, SecretHash};

/// Number of the next snapshot of this process.
static NEXT_VERSION: AtomicU64 = AtomicU64::new(0);

/// All API keys of a server. A change replaces the whole snapshot, so that each request reads
/// consistent keys without a lock.
#[derive(Debug)]
pub(crate) struct KeyTable {
    current: ArcSwap<Snapshot>,
    sources: Mutex<Sources>,
}

/// API keys of the configuration and of `keys.json`, from which each snapshot is built.
#[derive(Debug)]
struct Sources {
    configured: Vec<ConfiguredKey>,
    /// Content of `keys.json`; `None` while there is no such file.
    stored: Option<StoredKeys>,
    /// HMAC key of this process, with which secrets are hashed while there is no `keys.json`.
    hasher: Hasher,
    /// Reason why the latest `keys.json` is not used. The last valid one stays in use.
    error: Option<String>,
}

#[derive(Debug)]
struct Snapshot {
    /// Number of the snapshot, different for each snapshot of this process. A connection that remembers
    /// a secret compares it, so that a revoked key is looked up again and rejected.
    version: u64,
    /// True if requests need an API key.
    is_required: bool,
    hasher: Hasher,
    /// Secrets by the start of their keyed hash. Clients cannot choose these bytes, so a fast hash
    /// function suffices for the map.
    secrets: HashMap<[u8; PREFIX], Secret, FixedState>,
    /// True if a key of the configuration has `sha256`. Only then must a client's secret also be
    /// looked up by its SHA-256.
    has_digests: bool,
    /// Number of keys.
    count: usize,
}

/// A secret that authenticates clients, with the API key to which it belongs.
#[derive(Debug)]
struct Secret {
    hash: KeyedHash,
    /// Time from which this secret is rejected, if a rotation has replaced it.
    until: Option<Timestamp>,
    key: Arc<ApiKey>,
}

/// Reason why a client's secret is rejected.
#[derive(Clone, Debug)]
pub(crate) enum RejectedSecret {
    /// No key has this secret, or the key was revoked.
    Unknown,
    /// The API key has expired, or this secret of the key has.
    Expired(Arc<ApiKey>),
}

/// State of the API keys for `/status`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct KeyReport {
    /// True if requests need an API key.
    pub(crate) is_required: bool,
    /// Number of keys, without revoked ones.
    pub(crate) count: usize,
    /// Reason why the latest `keys.json` is not used. The last valid one stays in use.
    pub(crate) error: Option<String>,
}

impl KeyTable {
    /// Returns the table of the API keys of the configuration and of `keys.json`. `stored` is
    /// `None` if there is no `keys.json`.
    pub(crate) fn new(
        configured: Vec<ConfiguredKey>,
        stored: Option<StoredKeys>,
    ) -> Result<Self, NoRandomness> {
        let sources = Sources {
            configured,
            stored,
            hasher: Hasher::new(&random_bytes()?),
            error: None,
        };
        Ok(Self {
            current: ArcSwap::from_pointee(sources.snapshot(false)),
            sources: Mutex::new(sources),
        })
    }

    /// True if requests need an API key. It stays true until the server is restarted, even if all
    /// keys are deleted.
    pub(crate) fn is_required(&self) -> bool {
        self.current.load().is_required
    }

    /// Returns the API key to which a client's secret belongs, or the reason why the secret is
    /// rejected. `memo` remembers the last secret of the client's connection, which saves its hash.
    pub(crate) fn find(
        &self,
        secret: &[u8],
        memo: &SecretMemo,
    ) -> Result<Arc<ApiKey>, RejectedSecret> {
        let snapshot = self.current.load();
        let found = if let Some(found) = memo.get(secret, snapshot.version) {
            found
        } else {
            let found = snapshot.find(secret).ok_or(RejectedSecret::Unknown)?;
            memo.set(secret, snapshot.version, &found);
            found
        };
        if found.ends.iter().any(Option::is_some) {
            let now = Timestamp::now();
            if found.ends.iter().flatten().any(|end| *end <= now) {
                return Err(RejectedSecret::Expired(found.key));
            }
        }
        Ok(found.key)
    }

    /// True if the configuration file declares a key with this name.
    pub(crate) fn is_configured(&self, name: &str) -> bool {
        let sources = self.sources.lock().unwrap_or_else(PoisonError::into_inner);
        sources.configured.iter().any(|key| key.rights.name == name)
    }

    /// Replaces the keys that the configuration file declares, after a reload.
    pub(crate) fn set_configured(&self, configured: Vec<ConfiguredKey>) {
        self.change(|sources| sources.configured = configured);
    }

    /// Replaces the keys of `keys.json`, after the file has changed. `None` means that the file was
    /// deleted.
    pub(super) fn set_stored(&self, stored: Option<StoredKeys>) {
        self.change(|sources| {
            sources.stored = stored;
            sources.error = None;
        });
    }

    /// Notes that the latest `keys.json` cannot be used, for `/status`. The keys stay as they are.
    pub(super) fn set_error(&self, error: String) {
        let mut sources = self.sources.lock().unwrap_or_else(PoisonError::into_inner);
        sources.error = Some(error);
    }

    pub(crate) fn report(&self) -> KeyReport {
        let error = {
            let sources = self.sources.lock().unwrap_or_else(PoisonError::into_inner);
            sources.error.clone()
        };
        let snapshot = self.current.load();
        KeyReport {
            is_required: snapshot.is_required,
            count: snapshot.count,
            error,
        }
    }

    /// Returns all API keys, each once.
    pub(crate) fn all(&self) -> Vec<Arc<ApiKey>> {
        let snapshot = self.current.load();
        let keys = snapshot.secrets.values().map(|secret| &secret.key);
        // Return a key once, although it has two secrets for some time after its rotation.
        let mut names = HashSet::new();
        keys.filter(|key| names.insert(&*key.name))
            .map(Arc::clone)
            .collect()
    }

    fn change(&self, edit: impl FnOnce(&mut Sources)) {
        let mut sources = self.sources.lock().unwrap_or_else(PoisonError::into_inner);
        edit(&mut sources);
        let was_required = self.current.load().is_required;
        self.current.store(Arc::new(sources.snapshot(was_required)));
    }
}

impl Sources {
    fn snapshot(&self, was_required: bool) -> Snapshot {
        let stored = self.stored.as_ref();
        let hasher = stored.map_or_else(|| self.hasher.clone(), StoredKeys::hasher);
        // Require keys even if all are revoked: otherwise revoking the last key would open the
        // server to all clients.
        let is_required = was_required
            || !self.configured.is_empty()
            || stored.is_some_and(|stored| !stored.keys.is_empty());
        let mut snapshot = Snapshot {
            version: NEXT_VERSION.fetch_add(1, Ordering::Relaxed),
            is_required,
            hasher,
            secrets: HashMap::default(),
            has_digests: false,
            count: 0,
        };
        let mut names = HashSet::new();
        for one in &self.configured {
            names.insert(one.rights.name.as_str());
            let key = Arc::new(ApiKey::new(&one.rights));
            let hash = match &one.secret {
                ConfiguredSecret::Text(secret) => snapshot.hasher.hash(secret.expose().as_bytes()),
                ConfiguredSecret::Hash(digest) => {
                    snapshot.has_digests = true;
                    snapshot.hasher.hash_of_digest(*digest)
                }
            };
            snapshot.insert(hash, None, &key);
            snapshot.count += 1;
        }
        let stored = stored.map_or(&[][..], |stored| &stored.keys);
        for one in stored.iter().filter(|one| one.revoked.is_none()) {
            if !names.insert(&one.rights.name) {
                tracing::warn!(
                    "the API key `{}` of keys.json is not used: llmlb.toml has a key of that name",
                    one.rights.name
                );
                continue;
            }
            let key = Arc::new(ApiKey::new(&one.rights));
            snapshot.insert(one.hash, None, &key);
            if let Some(previous) = &one.previous {
                snapshot.insert(previous.hash, Some(previous.until), &key);
            }
            snapshot.count += 1;
        }
        snapshot
    }
}

impl Snapshot {
    /// Returns the API key of a secret. The caller checks if the key has expired.
    fn find(&self, secret: &[u8]) -> Option<FoundKey> {
        // Reject overlong texts before they are hashed: clients choose the length, and so the cost
        // of the hash.
        if secret.len() > MAX_SECRET || !secret.iter().all(u8::is_ascii_graphic) {
            return None;
        }
        let found = self.get(&self.hasher.hash(secret)).or_else(|| {
            let digest = self.has_digests.then(|| SecretHash::new(secret))?;
            self.get(&self.hasher.hash_of_digest(digest))
        })?;
        Some(FoundKey {
            key: Arc::clone(&found.key),
            ends: [found.until, found.key.expires],
        })
    }

    /// Returns the stored secret with this hash.
    fn get(&self, hash: &KeyedHash) -> Option<&Secret> {
        let found = self.secrets.get(&hash.prefix())?;
        found.hash.is_equal(hash).then_some(found)
    }

    /// Adds a secret of an API key, unless another key has the same secret.
    fn insert(&mut self, hash: KeyedHash, until: Option<Timestamp>, key: &Arc<ApiKey>) {
        match self.secrets.entry(hash.prefix()) {
            Entry::Vacant(entry) => {
                let key = Arc::clone(key);
                entry.insert(Secret { hash, until, key });
            }
            Entry::Occupied(entry) => tracing::warn!(
                "the API keys `{}` and `{}` have the same secret, which counts as that of the first",
                entry.get().key.name,
                key.name
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::config::{self, KeyRights};
    use crate::keys::file::PreviousSecret;
    use crate::keys::{NewSecret, StoredKey};

    fn configured(name: &str, secret: &str) -> ConfiguredKey {
        ConfiguredKey {
            rights: KeyRights::unlimited(name),
            secret: ConfiguredSecret::Text(config::Secret::new(secret.to_owned())),
        }
    }

    /// Returns a `keys.json` with one key, and the secret of that key.
    fn stored(name: &str) -> (StoredKeys, NewSecret) {
        let mut keys = StoredKeys::new().unwrap();
        let secret = NewSecret::generate().unwrap();
        let hash = keys.hash(&secret);
        let rights = KeyRights::unlimited(name);
        keys.add(StoredKey::new(rights, hash, Timestamp::now()));
        (keys, secret)
    }

    fn found(table: &KeyTable, secret: &str) -> String {
        match table.find(secret.as_bytes(), &SecretMemo::default()) {
            Ok(key) => key.name.to_string(),
            Err(RejectedSecret::Unknown) => "unknown".to_owned(),
            Err(RejectedSecret::Expired(key)) => format!("{} expired", key.name),
        }
    }

    #[test]
    fn keys_of_both_sources_are_found_by_their_whole_secret() {
        let (keys, secret) = stored("stored");
        let table = KeyTable::new(vec![configured("file", "open-sesame")], Some(keys)).unwrap();
        assert!(table.is_required());
        let secret = secret.expose();
        assert_eq!(found(&table, "open-sesame"), "file");
        assert_eq!(found(&table, secret), "stored");
        let long = "x".repeat(MAX_SECRET + 1);
        for wrong in ["", "open", "open-sesame ", &secret[..48], "\0", &long] {
            assert_eq!(found(&table, wrong), "unknown", "{wrong:?}");
        }
        assert_eq!(table.report().count, 2);
    }

    /// The SHA-256 in the configuration file does not authenticate a client that sends its bytes as
    /// a secret.
    #[test]
    fn secret_is_found_by_its_digest_and_the_digest_is_no_secret() {
        let digest = SecretHash::new(b"a-random-secret");
        let key = ConfiguredKey {
            secret: ConfiguredSecret::Hash(digest),
            ..configured("hashed", "")
        };
        let table = KeyTable::new(vec![key, configured("other", "text")], None).unwrap();
        assert_eq!(found(&table, "a-random-secret"), "hashed");
        assert_eq!(found(&table, "text"), "other");
        let bytes = [&[0][..], &digest.0].concat();
        for forged in [&digest.0[..], &bytes, b"a-random-secre"] {
            let rejected = table.find(forged, &SecretMemo::default()).unwrap_err();
            assert!(matches!(rejected, RejectedSecret::Unknown));
        }
    }

    #[test]
    fn expired_keys_and_replaced_secrets_are_rejected() {
        let now = Timestamp::now();
        let (past, future) = (now - Duration::from_secs(9), now + Duration::from_secs(900));
        let (mut keys, new) = stored("k");
        let old = NewSecret::generate().unwrap();
        let hash = keys.hash(&old);
        for (until, expires, expected) in [
            (future, None, ["k", "k"]),
            (past, None, ["k", "k expired"]),
            (past, Some(future), ["k", "k expired"]),
            (future, Some(past), ["k expired", "k expired"]),
        ] {
            let key = keys.find_mut("k").unwrap();
            key.previous = Some(PreviousSecret { hash, until });
            key.rights.expires = expires;
            let copy = StoredKeys::parse(&keys.format().unwrap()).unwrap();
            let table = KeyTable::new(Vec::new(), Some(copy)).unwrap();
            let states = [new.expose(), old.expose()].map(|secret| found(&table, secret));
            assert_eq!(states, expected);
        }
    }

    #[test]
    fn server_that_had_keys_stays_closed() {
        let table = KeyTable::new(Vec::new(), None).unwrap();
        assert!(!table.is_required());
        let (mut keys, secret) = stored("k");
        let copy = StoredKeys::parse(&keys.format().unwrap()).unwrap();
        table.set_stored(Some(copy));
        assert!(table.is_required());
        assert_eq!(found(&table, secret.expose()), "k");
        // The deletion of `keys.json` does not open the server.
        table.set_stored(None);
        assert!(table.is_required());
        assert_eq!(found(&table, secret.expose()), "unknown");
        // After a restart, a `keys.json` whose keys are all revoked keeps the server closed.
        keys.find_mut("k").unwrap().revoked = Some(Timestamp::now());
        let table = KeyTable::new(Vec::new(), Some(keys)).unwrap();
        assert!(table.is_required());
        assert_eq!(found(&table, secret.expose()), "unknown");
    }

    #[test]
    fn key_of_the_configuration_takes_precedence_over_a_stored_one_of_that_name() {
        let (keys, secret) = stored("k");
        let table = KeyTable::new(vec![configured("k", "declared")], Some(keys)).unwrap();
        assert_eq!(found(&table, "declared"), "k");
        assert_eq!(found(&table, secret.expose()), "unknown");
        table.set_configured(Vec::new());
        assert_eq!(found(&table, "declared"), "unknown");
        assert_eq!(found(&table, secret.expose()), "k");
    }
}
