//! API keys of clients. Keys come from `llmlb.toml` and from `keys.json` in the data directory,
//! which `llmlb key` changes while servers run (promise L11).
//!
//! A secret is stored nowhere. `keys.json` contains only a keyed hash of each secret, HMAC-SHA-256
//! under a random key of that file. A fast hash suffices because secrets are random: 32 bytes
//! cannot be guessed, however fast a guess is.
//!
//! A server that has had keys never serves clients without a key until it is restarted, even if all
//! keys are revoked or the file is deleted.

mod edit;
mod file;
#[cfg(any(test, fuzzing))]
pub(crate) mod fuzz;
mod hasher;
mod memo;
mod secret;
mod store;
mod table;
mod watch;

use std::hash::BuildHasher;
use std::sync::Arc;

use foldhash::fast::FixedState;
use jiff::Timestamp;

use crate::config::{KeyLimits, KeyRights, is_among};

pub(crate) use edit::NotAdded;
pub(crate) use file::StoredKey;
use file::StoredKeys;
pub(crate) use hasher::random_bytes;
pub(crate) use memo::SecretMemo;
pub(crate) use secret::NewSecret;
pub(crate) use store::{KeyFileError, KeyStore};
pub(crate) use table::{KeyReport, KeyTable, RejectedSecret};
pub(crate) use watch::KeyWatch;

/// An API key: its name, and the rights and limits of the clients that send its secret.
#[derive(Debug)]
pub(crate) struct ApiKey {
    /// Name of the key, unique among all keys. A rotated key keeps its name.
    pub(crate) name: Arc<str>,
    pub(crate) team: Option<Arc<str>>,
    /// Models and aliases that the key may use, as clients name them; `None` for all. A `*` at the end
    /// of a name matches any rest.
    models: Option<Vec<String>>,
    pub(crate) limits: KeyLimits,
    /// Time from which clients with the key are rejected.
    expires: Option<Timestamp>,
    /// True if clients with the key may use the dashboard and read the pages about the server, such as
    /// `/status`, from other machines.
    pub(crate) is_admin: bool,
    /// Number that identifies the key in the fair queue, where each key is one sender of requests.
    /// The number is the same after a restart.
    pub(crate) number: u64,
}

impl ApiKey {
    fn new(rights: &KeyRights) -> Self {
        Self {
            name: rights.name.as_str().into(),
            team: rights.team.as_deref().map(Arc::from),
            models: rights.models.clone(),
            limits: rights.limits,
            expires: rights.expires,
            is_admin: rights.is_admin,
            number: FixedState::default().hash_one(&rights.name),
        }
    }

    /// True if the key may use a model with this name. The name must match as the client writes it: a
    /// key for an alias may not use the models of the alias by their own names.
    pub(crate) fn allows(&self, model: &str) -> bool {
        let models = self.models.as_ref();
        models.is_none_or(|models| is_among(models, model))
    }

    /// Time from which the key is rejected.
    pub(crate) fn expires(&self) -> Option<Timestamp> {
        self.expires
    }

    pub(crate) fn models(&self) -> Option<&[String]> {
        self.models.as_deref()
    }
}

/// Returns a key that may use `models` and has default rights otherwise, for tests of other
/// modules.
#[cfg(test)]
pub(crate) fn test_key(name: &str, models: Option<&[&str]>) -> Arc<ApiKey> {
    let models = models.map(|models| models.iter().map(|&model| model.to_owned()).collect());
    Arc::new(ApiKey::new(&KeyRights {
        models,
        ..KeyRights::unlimited(name)
    }))
}
