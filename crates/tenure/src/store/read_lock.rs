//! Read locks: they exclude owners of a key without owning it.

use std::ffi::OsStr;
use std::thread;
use std::time::Instant;

use super::inspect::{self, IDENTIFY_PAUSE, IDENTIFY_TIMEOUT, Identified};
use super::location::{LockDirectory, StoreLocation};
use crate::error::{Error, Kind};
use crate::holder::{Holder, State};
use crate::key::Key;
use crate::sys::deletion_guard;
use crate::sys::file::{Directory, LockFile, Lookup};

/// A shared lock on the lock file of a key that no process owns. Several processes can have one at
/// the same time; claims on the key are refused
/// ([`Holder::is_reading`](crate::Holder::is_reading)).
///
/// A read lock creates no file and writes no record, so it leaves nothing behind, however the
/// process ends. Dropping it releases the lock.
///
/// ```
/// use tenure::{Key, Store};
///
/// let dir = tempfile::tempdir()?;
/// let store = Store::in_dir(dir.path());
/// let key = Key::name("deliver")?;
/// assert!(store.read_lock(&key)?.is_none(), "no file: there has never been an owner");
///
/// store.claim(&key).keep_file(true).try_acquire()?.release()?;
/// let reading = store.read_lock(&key)?.expect("the file was kept");
/// let refused = store.claim(&key).try_acquire().unwrap_err();
/// assert!(refused.holder().is_some_and(|holder| holder.is_reading()));
///
/// drop(reading);
/// let owner = store.claim(&key).keep_file(true).try_acquire()?;
/// assert!(store.read_lock(&key).unwrap_err().is_held());
/// # drop(owner);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
#[must_use = "owners are admitted as soon as the read lock is dropped"]
pub struct ReadLock {
    _files: Vec<LockFile>,
}

/// Acquires a shared lock on every lock file of the key that exists.
pub(super) fn acquire(location: &StoreLocation, key: &Key) -> Result<Option<ReadLock>, Error> {
    let mut files = Vec::new();
    for found in location.existing(Some(key))? {
        match &found {
            LockDirectory::Open(directory) => {
                files.extend(acquire_in(directory, key, &key.file_name())?);
            }
            LockDirectory::NoAccess { .. } => {
                if let Some(holder) = inspect::held_in(&found, key, &key.file_name())? {
                    return Err(held(key, holder));
                }
            }
        }
    }
    Ok((!files.is_empty()).then_some(ReadLock { _files: files }))
}

fn acquire_in(directory: &Directory, key: &Key, name: &OsStr) -> Result<Option<LockFile>, Error> {
    let path = directory.path().join(name);
    let give_up_at = Instant::now() + IDENTIFY_TIMEOUT;
    loop {
        let file = match directory.lookup(name)? {
            Lookup::File(file) => file,
            other => {
                return match inspect::without_readable_file(directory, key, name, &path, other) {
                    State::Held(holder) => Err(held(key, holder)),
                    State::Unknown { user, why } => Err(Error::new(Kind::Unknown {
                        key: key.to_string(),
                        path,
                        user,
                        why,
                    })),
                    State::OtherUser(user) => {
                        let why =
                            format!("the file belongs to {user}, and this user may not open it");
                        Err(Error::hostile(&path, why))
                    }
                    State::Unusable(why) => Err(Error::hostile(&path, why)),
                    _ => Ok(None),
                };
            }
        };
        let failed = |error| Error::io("lock", &path, error);
        if file.try_lock_shared().map_err(failed)? {
            // The owner of the key may have removed the file after this process opened it and
            // before this process locked it. A lock on the removed file would exclude no owner.
            if !file.is_at(directory, name).map_err(failed)? {
                continue;
            }
            return match deletion_guard::owner(directory, name) {
                Some(owner) => Err(held(key, inspect::owner_without_file(&path, key, owner))),
                None => Ok(Some(file)),
            };
        }
        match inspect::identify(&file, &path) {
            Identified::Proven(holder) => return Err(held(key, holder)),
            Identified::NotYet(holder) if Instant::now() >= give_up_at => {
                let unknown = || Box::new(Holder::unknown(path.clone()));
                return Err(held(key, holder.unwrap_or_else(unknown)));
            }
            Identified::NotYet(_) => thread::sleep(IDENTIFY_PAUSE),
        }
    }
}

fn held(key: &Key, holder: Box<Holder>) -> Error {
    Error::new(Kind::Held {
        key: key.to_string(),
        holder: *holder,
    })
}
