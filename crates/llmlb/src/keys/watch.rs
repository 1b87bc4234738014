//! A thread that applies changes of `keys.json` to the table of a running server.

use std::io;
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::Duration;

use super::store::KeyStore;
use super::table::KeyTable;
use crate::sys::data_file::{self, FileStamp};

/// Interval at which `keys.json` is checked for changes. Changes must take effect within a second.
const CHECK_EVERY: Duration = Duration::from_millis(400);

/// Handle of the thread that watches `keys.json`. Dropping the handle ends the thread.
#[derive(Debug)]
pub(crate) struct KeyWatch {
    _stop: mpsc::Sender<()>,
}

impl KeyWatch {
    /// Starts the thread.
    pub(crate) fn start(store: KeyStore, table: Arc<KeyTable>) -> io::Result<Self> {
        let (stop, stopped) = mpsc::channel();
        let mut watcher = Watcher::new(store, table);
        thread::Builder::new()
            .name("llmlb-keys".to_owned())
            .spawn(move || {
                let is_stopped = |waited| waited != Err(mpsc::RecvTimeoutError::Timeout);
                while !is_stopped(stopped.recv_timeout(CHECK_EVERY)) {
                    watcher.check();
                }
            })?;
        Ok(Self { _stop: stop })
    }
}

struct Watcher {
    store: KeyStore,
    table: Arc<KeyTable>,
    /// State of `keys.json` when it was read last. `None` before the first check, and after an
    /// error, so that the next check reads the file.
    seen: Option<Seen>,
    /// Message of the last error, so that the same error is logged once.
    error: Option<String>,
}

/// State of `keys.json`, by which a change is detected.
#[derive(PartialEq, Eq)]
enum Seen {
    Missing,
    File(FileStamp),
}

impl Watcher {
    fn new(store: KeyStore, table: Arc<KeyTable>) -> Self {
        Self {
            store,
            table,
            seen: None,
            error: None,
        }
    }

    /// Reads `keys.json` if it has changed, and applies its keys.
    fn check(&mut self) {
        let path = self.store.path();
        // Read the stamp of the file before its content: if the file changes in between, the next
        // check sees another stamp and reads the file again.
        let stamp = match data_file::stamp(&path) {
            Ok(stamp) => stamp.map_or(Seen::Missing, Seen::File),
            Err(error) => return self.failed(format!("{}: {error}", path.display())),
        };
        if self.seen.as_ref() == Some(&stamp) {
            return;
        }
        match self.store.read() {
            Ok(keys) => {
                let count = keys.as_ref().map(|keys| {
                    let active = keys.keys.iter().filter(|key| key.revoked.is_none());
                    active.count()
                });
                self.table.set_stored(keys);
                let is_first = self.seen.is_none() && self.error.is_none();
                match count {
                    _ if is_first => {}
                    Some(1) => tracing::info!("read 1 API key from {}", path.display()),
                    Some(count) => tracing::info!("read {count} API keys from {}", path.display()),
                    None => {
                        let path = path.display();
                        tracing::warn!("{path} was deleted: its API keys are rejected");
                    }
                }
                self.seen = Some(stamp);
                self.error = None;
            }
            Err(error) => self.failed(error.to_string()),
        }
    }

    /// Keeps the last valid keys, and logs an error that is new. The next check reads `keys.json`
    /// again: it may have become readable without a change of its stamp.
    fn failed(&mut self, error: String) {
        self.seen = None;
        if self.error.as_ref() != Some(&error) {
            tracing::error!("{error}; the API keys stay as they were");
            self.table.set_error(error.clone());
            self.error = Some(error);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::config::KeyRights;
    use crate::keys::{NewSecret, SecretMemo, StoredKey};

    fn add(store: &KeyStore, name: &str) -> NewSecret {
        let secret = NewSecret::generate().unwrap();
        let added = store.change("test", |keys| {
            let hash = keys.hash(&secret);
            let rights = KeyRights::unlimited(name);
            keys.add(StoredKey::new(rights, hash, jiff::Timestamp::now()));
            Ok::<(), ()>(())
        });
        added.unwrap().unwrap();
        secret
    }

    #[test]
    fn every_change_of_the_file_is_applied_and_a_bad_file_is_not() {
        let dir = tempfile::tempdir().unwrap();
        let store = KeyStore::new(&dir.path().join("data"));
        let table = Arc::new(KeyTable::new(Vec::new(), None).unwrap());
        let mut watcher = Watcher::new(store.clone(), Arc::clone(&table));
        watcher.check();
        assert!(!table.is_required());
        let secret = add(&store, "a");
        let works = || {
            table
                .find(secret.expose().as_bytes(), &SecretMemo::default())
                .is_ok()
        };
        watcher.check();
        assert!(works());
        // Write bad content into the file in place, then good content again.
        let good = fs::read(store.path()).unwrap();
        for bad in [&b""[..], b"{}", &good[..good.len() / 2]] {
            fs::write(store.path(), bad).unwrap();
            watcher.check();
            watcher.check();
            assert!(works(), "the last good keys stay");
            assert!(table.report().error.unwrap().contains("keys.json"));
        }
        fs::write(store.path(), &good).unwrap();
        watcher.check();
        assert!(works());
        assert_eq!(table.report().error, None);
        fs::remove_file(store.path()).unwrap();
        watcher.check();
        assert!(!works());
        assert!(table.is_required(), "the server stays closed");
        fs::write(store.path(), &good).unwrap();
        watcher.check();
        assert!(works());
    }
}
