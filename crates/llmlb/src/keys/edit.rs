//! Changes of `keys.json` that `llmlb key` and the dashboard make.

use jiff::Timestamp;

use super::secret::NewSecret;
use super::store::{KeyFileError, KeyStore};
use super::{StoredKey, StoredKeys};
use crate::config::{KeyRights, MAX_KEYS};

/// Reason why no key is added.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NotAdded {
    /// A key has this name.
    Exists,
    /// There are as many keys as a file may have.
    Full,
}

impl KeyStore {
    /// Adds a key with this secret. Returns true if it is the first key of the file.
    pub(crate) fn add(
        &self,
        verb: &str,
        rights: KeyRights,
        secret: &NewSecret,
    ) -> Result<Result<bool, NotAdded>, KeyFileError> {
        self.change(verb, |stored: &mut StoredKeys| {
            if stored.find_mut(&rights.name).is_some() {
                return Err(NotAdded::Exists);
            }
            let active = stored.keys.iter().filter(|key| key.revoked.is_none());
            if active.count() >= MAX_KEYS {
                return Err(NotAdded::Full);
            }
            let is_first = stored.keys.is_empty();
            let hash = stored.hash(secret);
            stored.add(StoredKey::new(rights, hash, Timestamp::now()));
            Ok(is_first)
        })
    }

    /// Revokes a key. Returns true if no key is left; `None` if no key has this name.
    pub(crate) fn revoke(&self, verb: &str, name: &str) -> Result<Option<bool>, KeyFileError> {
        let changed = self.change(verb, |stored| {
            let key = stored.find_mut(name).ok_or(())?;
            key.revoked = Some(Timestamp::now());
            key.previous = None;
            Ok::<bool, ()>(stored.keys.iter().all(|key| key.revoked.is_some()))
        });
        Ok(changed?.ok())
    }
}
