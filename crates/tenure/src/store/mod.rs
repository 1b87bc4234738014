//! Where ownership lives.

mod file;
mod foreign;
mod inspect;
mod place;
mod read_lock;

use std::path::{Path, PathBuf};
use std::thread;
use std::time::Instant;

use crate::claim::Claim;
use crate::error::{Error, Kind};
use crate::holder::Status;
use crate::key::{Key, absolute};
use crate::stop::Stop;
use crate::sys::file::{Directory, Look};
use crate::sys::guard::{self, Seen};

pub(crate) use file::{Attempt, FilePlace, Held, Previous, take};
pub(crate) use inspect::Inspection;
use place::Place;
pub(crate) use place::Target;
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
    place: Place,
}

impl Store {
    /// The store of one program: the directory `program` in the system's temporary directory.
    ///
    /// If that directory belongs to another user, `program-{uid}` is used instead; a key held in
    /// either counts as held.
    pub fn for_program(program: &str) -> Result<Self, Error> {
        Key::name(program)?;
        Ok(Self {
            place: Place::Shared {
                temp: std::env::temp_dir(),
                program: program.to_owned(),
            },
        })
    }

    /// Lock files in this directory, which is created if need be. It must belong to this user or
    /// to the administrator.
    pub fn in_dir(dir: impl Into<PathBuf>) -> Self {
        Self {
            place: Place::Given(absolute(dir.into())),
        }
    }

    /// Prepares to take a key.
    pub fn claim(&self, key: &Key) -> Claim {
        Claim::new(self.clone(), key.clone())
    }

    /// Keeps owners out of a key while its files are read, leaving nothing behind. `None`: the key has
    /// no file, so that there is nothing to lock; an owner may come at any time.
    pub fn read_lock(&self, key: &Key) -> Result<Option<ReadLock>, Error> {
        read_lock::take(&self.place, key)
    }

    /// Looks at a key without disturbing its owner.
    pub fn status(&self, key: &Key) -> Result<Status, Error> {
        inspect::status(&self.place, key)
    }

    /// Looks at every key that has a file here.
    pub fn list(&self) -> Result<Vec<Status>, Error> {
        inspect::list(&self.place)
    }

    /// Prepares to stop the owner of a key.
    pub fn stop(&self, key: &Key) -> Stop {
        Stop::new(self.clone(), key.clone())
    }

    /// The lock file of a key: where it is, or where it would be created.
    pub fn path_of(&self, key: &Key) -> PathBuf {
        self.place.path_of(key)
    }

    /// The directory in which this store keeps its lock files.
    pub fn dir(&self) -> PathBuf {
        self.place.dir()
    }

    pub(crate) fn target(&self, key: &Key) -> Result<Target, Error> {
        self.place.target(key)
    }

    pub(crate) fn inspect(&self, key: &Key) -> Result<Inspection, Error> {
        inspect::inspect(&self.place, key)
    }
}

/// The store that named locks of no particular program live in: `tenure` in the system's
/// temporary directory. The command `tenure` uses it too, unless `TENURE_DIR` names another
/// directory; the library does not look at that variable.
impl Default for Store {
    fn default() -> Self {
        Self {
            place: Place::Shared {
                temp: std::env::temp_dir(),
                program: "tenure".to_owned(),
            },
        }
    }
}

/// Removes a file that nobody holds, as its next owner would, also for root another user's. `false`: an
/// owner holds it now, or there is none any more.
pub(crate) fn clean(status: &Status) -> Result<bool, Error> {
    let (path, dir) = (
        status.path(),
        status.path().parent().unwrap_or(Path::new(".")),
    );
    let name = path.file_name().unwrap_or_default();
    let directory = if status.key().own_path().is_some() {
        Directory::open_parent(dir)?
    } else if let Some(directory) = Directory::open(dir, false)? {
        directory
    } else {
        return Ok(false);
    };
    let Look::File(file) = directory.look(name)? else {
        return Ok(false);
    };
    let failed = |error| Error::io("clean up", path, error);
    let give_up_at = Instant::now() + inspect::UNDECIDED;
    while !file.try_lock().map_err(failed)? {
        // A shared lock can be had beside those of readers, but not beside an owner's.
        if !file.probe().map_err(failed)? {
            return Ok(false);
        }
        if Instant::now() >= give_up_at {
            let why = "its stale file cannot be removed while a process reads under its lock";
            return Err(Error::new(Kind::StopRefused {
                key: status.key().to_string(),
                why: why.to_owned(),
            }));
        }
        thread::sleep(inspect::UNDECIDED_PAUSE);
    }
    // A process that is killed loses its lock a moment before its deletion guard.
    while guard::look(&directory, name) != Seen::Nobody {
        if Instant::now() >= give_up_at {
            return Ok(false);
        }
        thread::sleep(inspect::UNDECIDED_PAUSE);
    }
    if !file.is_at(&directory, name).map_err(failed)? {
        return Ok(false);
    }
    if !directory.is_network() {
        directory.remove(name).map_err(failed)?;
    }
    // For every process that inherited the descriptor too.
    file.unlock().map_err(failed)?;
    Ok(true)
}
