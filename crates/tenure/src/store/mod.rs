//! Stores: directories of lock files, and the operations on their keys.

mod file;
mod foreign;
mod inspect;
mod location;
mod read_lock;

use std::ffi::OsStr;
use std::io;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Instant;

use crate::claim::Claim;
use crate::error::{Error, Kind};
use crate::holder::Status;
use crate::key::{Key, absolute};
use crate::stop::Stop;
use crate::sys::deletion_guard;
use crate::sys::file::{Directory, LockFile, Lookup};
use crate::sys::types::LockState;

pub(crate) use file::{Attempt, Held, LossCheck, Previous, try_acquire};
pub(crate) use inspect::Inspection;
pub(crate) use location::LockTarget;
use location::StoreLocation;
pub use read_lock::ReadLock;

/// A set of keys, each with at most one owner: a directory of lock files on this machine.
///
/// ```
/// use tenure::{Key, Store};
///
/// let dir = tempfile::tempdir()?;
/// let store = Store::in_dir(dir.path());
/// let key = Key::port(8080);
/// let tenure = store.claim(&key).verb("serve").try_acquire()?;
/// assert!(store.status(&key)?.holder().is_some());
/// tenure.release()?;
/// assert!(store.status(&key)?.holder().is_none());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct Store {
    location: StoreLocation,
}

impl Store {
    /// Store of one program: the directory `program` in the system's temporary directory.
    ///
    /// If the directory `program` belongs to another user, lock files are created in
    /// `program-{uid}` instead. A key counts as held if it is held in either of the two
    /// directories.
    pub fn for_program(program: &str) -> Result<Self, Error> {
        Key::name(program)?;
        Ok(Self {
            location: StoreLocation::PerProgram {
                temp: std::env::temp_dir(),
                program: program.to_owned(),
            },
        })
    }

    /// Store in this directory, which is created if it does not exist. It must belong to this user
    /// or to root.
    pub fn in_dir(dir: impl Into<PathBuf>) -> Self {
        Self {
            location: StoreLocation::Fixed(absolute(dir.into())),
        }
    }

    /// Prepares to acquire a key.
    pub fn claim(&self, key: &Key) -> Claim {
        Claim::new(self.clone(), key.clone())
    }

    /// Excludes owners of a key while its data is read, and leaves nothing behind. `None`: the key
    /// has no lock file, so there is nothing to lock, and a process may acquire the key at any
    /// time.
    pub fn read_lock(&self, key: &Key) -> Result<Option<ReadLock>, Error> {
        read_lock::acquire(&self.location, key)
    }

    /// Inspects a key without disturbing its owner.
    pub fn status(&self, key: &Key) -> Result<Status, Error> {
        inspect::status(&self.location, key)
    }

    /// Inspects every key that has a lock file in the store.
    pub fn list(&self) -> Result<Vec<Status>, Error> {
        inspect::list(&self.location)
    }

    /// Prepares to stop the owner of a key.
    pub fn stop(&self, key: &Key) -> Stop {
        Stop::new(self.clone(), key.clone())
    }

    /// Path of the lock file of a key, or the path at which it would be created.
    pub fn path_of(&self, key: &Key) -> PathBuf {
        self.location.path_of(key)
    }

    /// Directory of the lock files.
    pub fn dir(&self) -> PathBuf {
        self.location.dir()
    }

    pub(crate) fn target(&self, key: &Key) -> Result<LockTarget, Error> {
        self.location.target(key)
    }

    pub(crate) fn inspect(&self, key: &Key) -> Result<Inspection, Error> {
        inspect::inspect(&self.location, key)
    }
}

/// The store for named locks that belong to no particular program: `tenure` in the system's
/// temporary directory. The command `tenure` uses it too, unless `TENURE_DIR` names another
/// directory. The library does not read that variable.
impl Default for Store {
    fn default() -> Self {
        Self {
            location: StoreLocation::PerProgram {
                temp: std::env::temp_dir(),
                program: "tenure".to_owned(),
            },
        }
    }
}

/// Removes a stale lock file; as root also another user's. Returns false if an owner holds it now,
/// or if it no longer exists.
pub(crate) fn remove_stale_file(status: &Status) -> Result<bool, Error> {
    let (path, dir) = (
        status.path(),
        status.path().parent().unwrap_or(Path::new(".")),
    );
    let name = path.file_name().unwrap_or_default();
    let directory = if status.key().own_path().is_some() {
        Directory::open_parent(dir)?
    } else if let Some(directory) = Directory::open(dir)? {
        directory
    } else {
        return Ok(false);
    };
    let Lookup::File(file) = directory.lookup(name)? else {
        return Ok(false);
    };
    let failed = |error| Error::io("remove the stale lock file", path, error);
    let give_up_at = Instant::now() + inspect::IDENTIFY_TIMEOUT;
    while !file.try_lock().map_err(failed)? {
        // The exclusive lock was refused. The probe tries a shared lock, which the kernel grants
        // alongside the shared locks of readers but not alongside the lock of an owner. If the
        // shared lock is refused too, an owner holds the file, which is then not stale.
        if file.probe().map_err(failed)? != LockState::Free {
            return Ok(false);
        }
        if Instant::now() >= give_up_at {
            let why =
                "its stale lock file cannot be removed while another process has a read lock on it";
            return Err(Error::new(Kind::StopRefused {
                key: status.key().to_string(),
                why: why.to_owned(),
            }));
        }
        thread::sleep(inspect::IDENTIFY_PAUSE);
    }
    let removed = remove_locked_file(&directory, name, &file, give_up_at).map_err(failed);
    // A child that was forked meanwhile has a copy of the descriptor. Unlocking releases the lock
    // for that copy too; closing would not.
    file.unlock().map_err(failed)?;
    removed
}

/// Removes a stale lock file that this process has locked. Returns false if another file is at the
/// path by now, or if a process still has the key's deletion guard at `give_up_at`: that process
/// may own the key although its lock file was deleted.
fn remove_locked_file(
    directory: &Directory,
    name: &OsStr,
    file: &LockFile,
    give_up_at: Instant,
) -> io::Result<bool> {
    // The kernel releases the lock of a killed process a moment before it closes the process's
    // deletion guard. Without the wait, the stale file of a killed owner would not be removed.
    while deletion_guard::owner(directory, name).is_some() {
        if Instant::now() >= give_up_at {
            return Ok(false);
        }
        thread::sleep(inspect::IDENTIFY_PAUSE);
    }
    if !file.is_at(directory, name)? {
        return Ok(false);
    }
    if !directory.is_network() {
        directory.remove(name)?;
    }
    Ok(true)
}
