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
use crate::lease::{self, LeaseStore};
use crate::stop::Stop;
use crate::sys::deletion_guard;
use crate::sys::file::{Directory, LockFile, Lookup};
use crate::sys::types::LockState;

pub(crate) use file::{Attempt, Held, LossCheck, Previous, try_acquire};
pub(crate) use inspect::Inspection;
pub(crate) use location::LockTarget;
use location::StoreLocation;
pub use read_lock::ReadLock;

/// A set of keys, each with at most one owner: a directory of lock files on this machine, or leases
/// in a store that several machines share ([`connect`](Self::connect)).
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
    pub(crate) kind: StoreKind,
}

/// Location of the keys of a store.
#[derive(Clone, Debug)]
pub(crate) enum StoreKind {
    /// Lock files on this machine.
    Files(StoreLocation),
    /// Leases that several machines share.
    Leases(LeaseStore),
}

impl Store {
    /// Store of one program: the directory `program` in the system's temporary directory.
    ///
    /// If the directory `program` belongs to another user, lock files are created in
    /// `program-{uid}` instead. A key counts as held if it is held in either of the two
    /// directories.
    pub fn for_program(program: &str) -> Result<Self, Error> {
        Key::name(program)?;
        Ok(Self::files(StoreLocation::PerProgram {
            temp: std::env::temp_dir(),
            program: program.to_owned(),
        }))
    }

    /// Store in this directory, which is created if it does not exist. It must belong to this user
    /// or to root.
    pub fn in_dir(dir: impl Into<PathBuf>) -> Self {
        Self::files(StoreLocation::Fixed(absolute(dir.into())))
    }

    /// Connects to a store of leases, which several machines share. The scheme of the URL names the
    /// store, and each needs the cargo feature of the same name:
    ///
    /// - `redis://[USER:PASSWORD@]HOST[:PORT][/DB]`, with TLS `rediss://`, `redis+unix:///PATH`
    /// - `etcd://HOST:PORT[,HOST:PORT..][/PREFIX]`, with TLS `etcds://`
    /// - `dynamodb://TABLE?region=REGION`
    ///
    /// docs/stores.md in the repository lists the options of each store, and what it promises.
    ///
    /// ```no_run
    /// use std::time::Duration;
    /// use tenure::{Key, Store};
    ///
    /// let store = Store::connect("redis://127.0.0.1:6379")?;
    /// let tenure = store
    ///     .claim(&Key::name("nightly-import")?)
    ///     .ttl(Duration::from_secs(15))
    ///     .try_acquire()?;
    /// assert!(!tenure.lost()); // renewed in the background
    /// tenure.release()?;
    /// # Ok::<(), tenure::Error>(())
    /// ```
    pub fn connect(url: &str) -> Result<Self, Error> {
        Ok(Self {
            kind: StoreKind::Leases(LeaseStore::connect(url)?),
        })
    }

    /// True if the keys of this store are held as leases, which several machines share.
    pub fn is_lease(&self) -> bool {
        matches!(self.kind, StoreKind::Leases(_))
    }

    /// Returns a text that names a lease store, without user and password: its URL, with the options
    /// that decide in which store a key is (Redis: `prefix`; DynamoDB: `region` and `endpoint`, also if
    /// the environment gives them). `None` for a store of files.
    ///
    /// Hosts compare this text to detect that they are configured for different stores. Two texts
    /// for one store are possible, for example with and without the default port.
    ///
    /// ```no_run
    /// let store = tenure::Store::connect("redis://:secret@127.0.0.1:6379?prefix=jobs")?;
    /// assert_eq!(store.identity().as_deref(), Some("redis://127.0.0.1:6379?prefix=jobs"));
    /// # Ok::<(), tenure::Error>(())
    /// ```
    pub fn identity(&self) -> Option<String> {
        match &self.kind {
            StoreKind::Files(_) => None,
            StoreKind::Leases(leases) => Some(leases.identity()),
        }
    }

    fn files(location: StoreLocation) -> Self {
        Self {
            kind: StoreKind::Files(location),
        }
    }

    /// Returns the location of the lock files, or an error for a lease store: the caller's
    /// operation exists only for files.
    fn location(&self, act: &'static str) -> Result<&StoreLocation, Error> {
        match &self.kind {
            StoreKind::Files(location) => Ok(location),
            StoreKind::Leases(leases) => Err(Error::new(Kind::FilesOnly {
                act,
                store: leases.url().to_owned(),
            })),
        }
    }

    /// Prepares to acquire a key.
    pub fn claim(&self, key: &Key) -> Claim {
        Claim::new(self.clone(), key.clone())
    }

    /// Excludes owners of a key while its data is read, without creating a lock file. `None`: the
    /// key has no lock file, so there is nothing to lock, and a process may acquire the key at any
    /// time.
    pub fn read_lock(&self, key: &Key) -> Result<Option<ReadLock>, Error> {
        read_lock::acquire(self.location("take a read lock")?, key)
    }

    /// Inspects a key without disturbing its owner.
    pub fn status(&self, key: &Key) -> Result<Status, Error> {
        match &self.kind {
            StoreKind::Files(location) => inspect::status(location, key),
            StoreKind::Leases(leases) => lease::status(leases, key),
        }
    }

    /// Inspects every key that has a lock file or a lease in the store.
    pub fn list(&self) -> Result<Vec<Status>, Error> {
        match &self.kind {
            StoreKind::Files(location) => inspect::list(location),
            StoreKind::Leases(leases) => lease::list(leases),
        }
    }

    /// Prepares to stop the owner of a key.
    pub fn stop(&self, key: &Key) -> Stop {
        Stop::new(self.clone(), key.clone())
    }

    /// Path of the lock file of a key, or the path at which it would be created. In a lease store:
    /// its URL without credentials, `#` and the key.
    pub fn path_of(&self, key: &Key) -> PathBuf {
        match &self.kind {
            StoreKind::Files(location) => location.path_of(key),
            StoreKind::Leases(leases) => leases.path_of(key),
        }
    }

    /// Directory of the lock files. In a lease store: its URL without credentials.
    pub fn dir(&self) -> PathBuf {
        match &self.kind {
            StoreKind::Files(location) => location.dir(),
            StoreKind::Leases(leases) => PathBuf::from(leases.url()),
        }
    }

    pub(crate) fn target(&self, key: &Key) -> Result<LockTarget, Error> {
        self.location("open a lock file")?.target(key)
    }

    pub(crate) fn inspect(&self, key: &Key) -> Result<Inspection, Error> {
        inspect::inspect(self.location("open a lock file")?, key)
    }
}

/// The store for named locks that belong to no particular program: `tenure` in the system's
/// temporary directory. The command `tenure` uses it too, unless `TENURE_DIR` names another
/// directory. The library does not read that variable.
impl Default for Store {
    fn default() -> Self {
        Self::files(StoreLocation::PerProgram {
            temp: std::env::temp_dir(),
            program: "tenure".to_owned(),
        })
    }
}

/// Removes a stale lock file; as root also one of another user. Returns false if an owner holds the
/// file now, or if the file no longer exists.
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
    // A child of this process that was forked meanwhile has a copy of the descriptor. Unlocking
    // releases the lock for that copy too; closing the descriptor would not.
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
    // Wait for the deletion guard: the kernel releases the lock of a killed process a moment before
    // it closes the process's guard. Without the wait, the stale file of a killed owner would not
    // be removed.
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
