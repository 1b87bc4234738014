//! The API keys of a server at its start, from `llmlb.toml` and the data directory.
//!
//! A demo has a data directory of its own for usage, but honours the same keys as other servers.

use std::path::Path;
use std::sync::Arc;

use super::exit::{self, Failure};
use crate::config::Config;
use crate::data_dir;
use crate::keys::{KeyFileError, KeyStore, KeyTable, KeyWatch};

/// Returns the file of API keys in the configured data directory, else in that of the user; `None`
/// if there is no data directory.
fn store(configured: Option<&Path>) -> Option<KeyStore> {
    data_dir::find(configured, false).map(|dir| KeyStore::new(&dir))
}

/// True if the data directory has API keys, or a `keys.json` that cannot be read: clients then need
/// a key.
pub(super) fn are_stored(configured: Option<&Path>) -> bool {
    store(configured).is_some_and(|store| store.requires_keys())
}

/// Returns an error if the API keys of the data directory cannot be read.
pub(super) fn check(config: &Config) -> Result<(), Failure> {
    match store(config.usage.data_dir.as_deref()).map(|store| store.read()) {
        Some(Err(error)) => Err(failure(&error)),
        Some(Ok(_)) | None => Ok(()),
    }
}

/// Reads all API keys, and starts the thread that applies later changes of `keys.json`.
pub(super) fn open(config: &Config) -> Result<(Arc<KeyTable>, Option<KeyWatch>), Failure> {
    let store = store(config.usage.data_dir.as_deref());
    let stored = store.as_ref().map_or(Ok(None), KeyStore::read);
    let stored = stored.map_err(|error| failure(&error))?;
    let table = KeyTable::new(config.keys.clone(), stored)
        .map_err(|error| Failure::new(exit::FAILED, error.to_string()))?;
    let table = Arc::new(table);
    let watch = store.map(|store| KeyWatch::start(store, Arc::clone(&table)));
    let watch = watch
        .transpose()
        .map_err(|error| Failure::new(exit::FAILED, format!("cannot start a thread: {error}")))?;
    Ok((table, watch))
}

/// Returns the error for a `keys.json` that cannot be used.
pub(super) fn failure(error: &KeyFileError) -> Failure {
    let failure = Failure::new(exit::FAILED, error.to_string());
    match error.hint() {
        Some(hint) => failure.hint(hint),
        None => failure,
    }
}
