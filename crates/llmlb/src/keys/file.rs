//! Format of `keys.json`, in which `llmlb key` stores API keys.
//!
//! ```text
//! {"version":1,"hmac_key":"9f86d0..","keys":[
//!   {"name":"alice","hash":"e3b0c4..","created":"2026-11-18T12:00:00Z","team":"search",
//!    "models":["llama3*"],"rpm":60,"budget_tokens":1000000,"per":"month",
//!    "expires":"2027-01-01T00:00:00Z"},
//!   {"name":"bob","hash":"88d4f3..","created":"2026-11-18T12:00:00Z","revoked":"2026-11-19T08:00:00Z"}]}
//! ```
//!
//! Fields without a value are omitted. Unknown fields are rejected: ignoring a limit that a later
//! release wrote would extend the rights of its key.

use std::collections::HashSet;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::hasher::{Hasher, KeyedHash, NoRandomness, random_bytes};
use super::secret::NewSecret;
use crate::config::{
    Budget, KeyLimits, KeyRights, MAX_KEYS, Period, bytes_from_hex, bytes_to_hex, is_key_name,
};

const VERSION: u32 = 1;
/// Maximum number of revoked keys that stay in `keys.json`; the oldest are forgotten. At least one
/// must stay: a file without keys would let the next start of the server serve everyone.
const MAX_REVOKED: usize = 100;

#[derive(Debug)]
pub(crate) struct StoredKeys {
    /// HMAC key with which the secrets of this file are hashed, random for each file.
    hmac_key: HmacKey,
    /// API keys in the order of their creation. Names are unique.
    pub(crate) keys: Vec<StoredKey>,
}

/// HMAC key with which the secrets of one file are hashed. It is not printed: with this key and a
/// hash, a secret that is not random could be guessed.
struct HmacKey([u8; 32]);

impl std::fmt::Debug for HmacKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("***")
    }
}

/// An API key in `keys.json`.
#[derive(Clone, Debug)]
pub(crate) struct StoredKey {
    /// Name, rights and limits of the API key.
    pub(crate) rights: KeyRights,
    pub(super) hash: KeyedHash,
    /// The secret that the last rotation replaced, if clients may still use it.
    pub(crate) previous: Option<PreviousSecret>,
    pub(crate) created: Timestamp,
    /// Time at which the key was revoked. A revoked key stays in the file but authenticates no
    /// client.
    pub(crate) revoked: Option<Timestamp>,
}

/// The secret that a rotation replaced.
#[derive(Clone, Debug)]
pub(crate) struct PreviousSecret {
    pub(super) hash: KeyedHash,
    /// Time from which clients with this secret are rejected.
    pub(crate) until: Timestamp,
}

impl StoredKey {
    /// Returns a new key.
    pub(crate) fn new(rights: KeyRights, hash: KeyedHash, created: Timestamp) -> Self {
        Self {
            rights,
            hash,
            previous: None,
            created,
            revoked: None,
        }
    }

    /// Replaces the secret of the key. The old secret works until `until`, if that is given.
    pub(crate) fn rotate(&mut self, hash: KeyedHash, until: Option<Timestamp>) {
        let old = std::mem::replace(&mut self.hash, hash);
        self.previous = until.map(|until| PreviousSecret { hash: old, until });
    }
}

impl StoredKeys {
    /// Returns a `keys.json` without keys, with a new random HMAC key for hashes.
    pub(super) fn new() -> Result<Self, NoRandomness> {
        Ok(Self {
            hmac_key: HmacKey(random_bytes()?),
            keys: Vec::new(),
        })
    }

    pub(super) fn hasher(&self) -> Hasher {
        Hasher::new(&self.hmac_key.0)
    }

    /// Returns the hash of a new secret, under the HMAC key of this file.
    pub(crate) fn hash(&self, secret: &NewSecret) -> KeyedHash {
        self.hasher().hash(secret.expose().as_bytes())
    }

    /// Adds an API key. Replaces a revoked key of the same name, and forgets the oldest revoked
    /// keys.
    pub(crate) fn add(&mut self, key: StoredKey) {
        self.keys.retain(|one| one.rights.name != key.rights.name);
        self.keys.push(key);
        let mut revoked: Vec<Timestamp> = self.keys.iter().filter_map(|one| one.revoked).collect();
        if revoked.len() > MAX_REVOKED {
            revoked.sort_unstable();
            let oldest_kept = revoked[revoked.len() - MAX_REVOKED];
            self.keys
                .retain(|one| one.revoked.is_none_or(|time| time >= oldest_kept));
        }
    }

    pub(crate) fn find_mut(&mut self, name: &str) -> Option<&mut StoredKey> {
        let mut keys = self.keys.iter_mut();
        keys.find(|key| key.rights.name == name && key.revoked.is_none())
    }

    /// Parses `keys.json`. The error is the reason why the file is rejected.
    pub(super) fn parse(text: &[u8]) -> Result<Self, String> {
        let explain =
            |error: serde_json::Error| format!("the content is not a valid key file: {error}");
        let Version { version } = serde_json::from_slice(text).map_err(explain)?;
        if version != VERSION {
            return Err(format!(
                "another release of llmlb wrote the file (version {version}; this release reads \
                 version {VERSION})"
            ));
        }
        let document: Document = serde_json::from_slice(text).map_err(explain)?;
        let hmac_key =
            bytes_from_hex(&document.hmac_key).ok_or("the value of `hmac_key` is not valid")?;
        if document.keys.len() > MAX_KEYS + MAX_REVOKED {
            let count = document.keys.len();
            return Err(format!(
                "the file has {count} keys; allowed: up to {MAX_KEYS}"
            ));
        }
        let mut names = HashSet::new();
        let mut keys = Vec::with_capacity(document.keys.len());
        for (index, entry) in document.keys.into_iter().enumerate() {
            let key = entry.parse();
            let key = key.map_err(|field| format!("key {}: `{field}` is not valid", index + 1))?;
            if !names.insert(key.rights.name.clone()) {
                return Err(format!("the key `{}` occurs twice", key.rights.name));
            }
            keys.push(key);
        }
        Ok(Self {
            hmac_key: HmacKey(hmac_key),
            keys,
        })
    }

    /// Formats the file.
    pub(super) fn format(&self) -> Result<Vec<u8>, serde_json::Error> {
        let document = Document {
            version: VERSION,
            hmac_key: bytes_to_hex(&self.hmac_key.0),
            keys: self.keys.iter().map(Entry::new).collect(),
        };
        let mut text = serde_json::to_vec_pretty(&document)?;
        text.push(b'\n');
        Ok(text)
    }
}

#[derive(Deserialize)]
struct Version {
    version: u32,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Document {
    version: u32,
    hmac_key: String,
    keys: Vec<Entry>,
}

#[derive(Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Entry {
    name: String,
    hash: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    previous_hash: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    previous_until: Option<String>,
    created: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    team: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    models: Option<Vec<String>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    rpm: Option<u32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    tpm: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    concurrency: Option<u32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    budget_tokens: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    per: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    expires: Option<String>,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    admin: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    revoked: Option<String>,
}

impl Entry {
    fn new(key: &StoredKey) -> Self {
        let previous = key.previous.as_ref();
        let (rights, limits) = (&key.rights, &key.rights.limits);
        Self {
            name: rights.name.clone(),
            hash: bytes_to_hex(&key.hash.0),
            previous_hash: previous.map(|previous| bytes_to_hex(&previous.hash.0)),
            previous_until: previous.map(|previous| previous.until.to_string()),
            created: key.created.to_string(),
            team: rights.team.clone(),
            models: rights.models.clone(),
            rpm: limits.requests_per_minute,
            tpm: limits.tokens_per_minute,
            concurrency: limits.concurrency,
            budget_tokens: limits.budget.map(|budget| budget.tokens),
            per: limits.budget.map(|budget| budget.per.name().to_owned()),
            expires: rights.expires.map(|time| time.to_string()),
            admin: rights.is_admin,
            revoked: key.revoked.map(|time| time.to_string()),
        }
    }

    /// Checks all fields of a key in `keys.json`. The error is the name of the first field that is
    /// not valid.
    fn parse(self) -> Result<StoredKey, &'static str> {
        let hash = |text: &str| bytes_from_hex(text).map(KeyedHash);
        let time = |text: &str| text.parse::<Timestamp>().ok();
        let optional_time = |text: Option<String>, field| match text {
            Some(text) => time(&text).map(Some).ok_or(field),
            None => Ok(None),
        };
        if !is_key_name(&self.name) {
            return Err("name");
        }
        if self.team.as_ref().is_some_and(|team| !is_key_name(team)) {
            return Err("team");
        }
        if self.models.as_ref().is_some_and(Vec::is_empty) {
            return Err("models");
        }
        let previous = match (self.previous_hash, self.previous_until) {
            (Some(text), Some(until)) => Some(PreviousSecret {
                hash: hash(&text).ok_or("previous_hash")?,
                until: time(&until).ok_or("previous_until")?,
            }),
            (None, None) => None,
            _ => return Err("previous_hash"),
        };
        let budget = match (self.budget_tokens, self.per) {
            (Some(tokens), Some(per)) => {
                let mut words = Period::WORDS.into_iter();
                let per = words.find(|(word, _)| *word == per).ok_or("per")?.1;
                Some(Budget { tokens, per })
            }
            (None, None) => None,
            _ => return Err("budget_tokens"),
        };
        Ok(StoredKey {
            hash: hash(&self.hash).ok_or("hash")?,
            rights: KeyRights {
                name: self.name,
                team: self.team,
                models: self.models,
                limits: KeyLimits {
                    requests_per_minute: self.rpm,
                    tokens_per_minute: self.tpm,
                    concurrency: self.concurrency,
                    budget,
                },
                expires: optional_time(self.expires, "expires")?,
                is_admin: self.admin,
            },
            previous,
            created: time(&self.created).ok_or("created")?,
            revoked: optional_time(self.revoked, "revoked")?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(name: &str) -> StoredKey {
        let created = "2026-11-18T12:00:00Z".parse().unwrap();
        StoredKey::new(KeyRights::unlimited(name), KeyedHash([7; 32]), created)
    }

    fn text(keys: &StoredKeys) -> String {
        String::from_utf8(keys.format().unwrap()).unwrap()
    }

    #[test]
    fn every_field_survives_a_rewrite() {
        let mut keys = StoredKeys::new().unwrap();
        keys.add(key("plain"));
        let time = |text: &str| text.parse::<Timestamp>().unwrap();
        keys.add(StoredKey {
            previous: Some(PreviousSecret {
                hash: KeyedHash([9; 32]),
                until: time("2026-11-19T12:00:00Z"),
            }),
            rights: KeyRights {
                team: Some("search".to_owned()),
                models: Some(vec!["llama*".to_owned(), "ä".to_owned()]),
                limits: KeyLimits {
                    requests_per_minute: Some(1),
                    tokens_per_minute: Some(2),
                    concurrency: Some(3),
                    budget: Some(Budget {
                        tokens: 4,
                        per: Period::Month,
                    }),
                },
                expires: Some(time("2027-01-01T00:00:00Z")),
                is_admin: true,
                ..KeyRights::unlimited("full")
            },
            revoked: Some(time("2026-12-01T00:00:00Z")),
            ..key("full")
        });
        let written = text(&keys);
        let read = StoredKeys::parse(written.as_bytes()).unwrap();
        assert_eq!(text(&read), written);
        assert_eq!(format!("{:?}", read.keys), format!("{:?}", keys.keys));
        let plain = r#"{
      "name": "plain",
      "hash": "0707070707070707070707070707070707070707070707070707070707070707",
      "created": "2026-11-18T12:00:00Z"
    }"#;
        assert!(written.contains(plain), "{written}");
    }

    #[test]
    fn garbage_and_files_of_other_releases_are_rejected_with_a_reason() {
        let mut keys = StoredKeys::new().unwrap();
        let mut alice = key("alice");
        alice.rights.models = Some(vec!["m".to_owned()]);
        alice.rights.team = Some("t".to_owned());
        keys.add(alice);
        let good = text(&keys);
        assert!(StoredKeys::parse(good.as_bytes()).is_ok());
        let hash = "07".repeat(32);
        for (from, to, why) in [
            (good.as_str(), "", "not a valid key file"),
            (&good, "{}", "missing field `version`"),
            (&good, "\0\u{1}", "not a valid key file"),
            ("\"version\": 1", "\"version\": 2", "another release"),
            ("\"alice\"", "\"a b\"", "key 1: `name` is not valid"),
            ("\"t\"", "\"\"", "key 1: `team` is not valid"),
            (&hash, &hash[2..], "key 1: `hash` is not valid"),
            ("2026-11-18T", "2026-11-", "key 1: `created` is not valid"),
            ("\"team\"", "\"limit\"", "unknown field `limit`"),
            ("\"team\": \"t\"", "\"per\": \"day\"", "`budget_tokens`"),
            ("\"team\": \"t\"", "\"rpm\": -1", "not a valid key file"),
            (
                "\"team\": \"t\"",
                "\"previous_until\": \"x\"",
                "`previous_hash`",
            ),
            ("\"hmac_key\": \"", "\"hmac_key\": \"0", "`hmac_key`"),
        ] {
            let bad = good.replacen(from, to, 1);
            assert_ne!(bad, good, "{from}");
            let error = StoredKeys::parse(bad.as_bytes()).unwrap_err();
            assert!(error.contains(why), "{from}: {error}");
        }
        let mut twice = StoredKeys::parse(good.as_bytes()).unwrap();
        twice.keys.push(twice.keys[0].clone());
        let error = StoredKeys::parse(text(&twice).as_bytes()).unwrap_err();
        assert_eq!(error, "the key `alice` occurs twice");
    }

    #[test]
    fn new_key_replaces_a_revoked_one_and_the_oldest_revoked_keys_are_forgotten() {
        let mut keys = StoredKeys::new().unwrap();
        let start: Timestamp = "2026-11-18T12:00:00Z".parse().unwrap();
        for number in 0..150 {
            let revoked = start + std::time::Duration::from_secs(number);
            keys.add(StoredKey {
                revoked: Some(revoked),
                ..key(&format!("k{number}"))
            });
        }
        assert_eq!(keys.keys.len(), MAX_REVOKED);
        assert_eq!(keys.keys[0].rights.name, "k50");
        assert!(keys.find_mut("k99").is_none(), "revoked");
        keys.add(key("k99"));
        assert_eq!(keys.keys.len(), MAX_REVOKED);
        assert!(keys.find_mut("k99").is_some());
    }
}
