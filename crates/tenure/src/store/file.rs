//! The lock protocol: open, lock, second guard, re-check, write; and back.
//!
//! The order is what makes it safe; docs/lock-protocol.md gives the reasons.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use super::inspect::{self, Identified};
use super::place::Target;
use crate::error::{Error, Kind};
use crate::holder::Holder;
use crate::record::{MAX_BYTES, Record, Unreadable};
use crate::sys::file::{Directory, LockFile};
use crate::sys::guard::{Guard, Take};

/// How long a held lock without a provable owner is looked at again: its owner may be between
/// taking the lock and writing the record, and a reader may have it for an instant.
const UNDECIDED: Duration = Duration::from_millis(100);
const UNDECIDED_PAUSE: Duration = Duration::from_micros(500);

/// A lock that this process holds.
#[derive(Debug)]
pub(crate) struct Held {
    directory: Directory,
    file: LockFile,
    guard: Guard,
    name: OsString,
    path: PathBuf,
    network: bool,
}

/// What the file said when we got it; `None` if there was no file.
pub(crate) type Previous = Option<Result<Box<Record>, Unreadable>>;

/// The outcome of one attempt.
#[derive(Debug)]
pub(crate) enum Attempt {
    /// The lock is ours; the record is still the previous owner's, if it left one.
    Taken(Held, Previous),
    Busy(Box<Holder>, Target),
}

/// Tries to take the lock. Waits only while it cannot be said who has it.
pub(crate) fn take(target: Target) -> Result<Attempt, Error> {
    let mut give_up_at = None;
    loop {
        let undecided = match step(&target)? {
            Step::Locked(file, guard) => return taken(target, file, guard),
            Step::Busy(holder) => return Ok(Attempt::Busy(holder, target)),
            Step::Again => continue,
            Step::Undecided(holder) => holder,
        };
        let now = Instant::now();
        if now >= *give_up_at.get_or_insert(now + UNDECIDED) {
            let unknown = || Box::new(Holder::unknown(target.path().to_owned()));
            return Ok(Attempt::Busy(undecided.unwrap_or_else(unknown), target));
        }
        thread::sleep(UNDECIDED_PAUSE);
    }
}

enum Step {
    Locked(LockFile, Guard),
    Busy(Box<Holder>),
    /// The file was replaced under our hands.
    Again,
    /// Somebody has it; who, may show in a moment.
    Undecided(Option<Box<Holder>>),
}

fn step(target: &Target) -> Result<Step, Error> {
    let (directory, name, path) = (&target.directory, target.name.as_os_str(), target.path());
    let file = directory.open_or_create(name)?;
    if !file
        .try_lock()
        .map_err(|error| Error::io("lock", path, error))?
    {
        return Ok(match inspect::identify(&file, path) {
            Identified::Proven(holder) => Step::Busy(holder),
            Identified::NotYet(holder) => Step::Undecided(holder),
        });
    }
    let back_out = |file: &LockFile| {
        if file.created {
            let _ = directory.remove(name);
        }
    };
    let guard = match Guard::take(directory, &file, name) {
        Ok(Take::Taken(guard)) => guard,
        Ok(Take::Held(pid)) => {
            back_out(&file);
            let holder = inspect::owner_without_file(path, &target.key, pid);
            return Ok(match pid {
                Some(_) => Step::Busy(holder),
                None => Step::Undecided(Some(holder)),
            });
        }
        Err(error) => {
            back_out(&file);
            return Err(Error::io("guard", path, error));
        }
    };
    // After the guard, not before: see `Guard::take`.
    if !file
        .is_at(directory, name)
        .map_err(|error| Error::io("look at", path, error))?
    {
        return Ok(Step::Again);
    }
    if let Some(elsewhere) = &target.elsewhere
        && let Some(holder) = inspect::held_in(elsewhere, &target.key, name)?
    {
        back_out(&file);
        return Ok(Step::Busy(holder));
    }
    Ok(Step::Locked(file, guard))
}

fn taken(target: Target, file: LockFile, guard: Guard) -> Result<Attempt, Error> {
    let path = target.path().to_owned();
    if target.own_directory {
        target.directory.keep_cleaners_off();
    }
    let previous = if file.created {
        None
    } else {
        let bytes = file
            .read(MAX_BYTES)
            .map_err(|error| Error::io("read", &path, error))?;
        Some(Record::decode(&bytes).map(Box::new))
    };
    let held = Held {
        network: target.directory.is_network(),
        directory: target.directory,
        file,
        guard,
        name: target.name,
        path,
    };
    Ok(Attempt::Taken(held, previous))
}

impl Held {
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    pub(crate) fn file(&self) -> &LockFile {
        &self.file
    }

    pub(crate) fn guard(&self) -> &Guard {
        &self.guard
    }

    /// Other machines may see this file.
    pub(crate) fn is_on_network(&self) -> bool {
        self.network
    }

    pub(crate) fn read(&self) -> Result<Result<Record, Unreadable>, Error> {
        let bytes = self
            .file
            .read(MAX_BYTES)
            .map_err(|error| Error::io("read", &self.path, error))?;
        Ok(Record::decode(&bytes))
    }

    pub(crate) fn write(&mut self, record: &Record) -> Result<(), Error> {
        self.file
            .write(&record.encode())
            .map_err(|error| Error::io("write the record to", &self.path, error))
    }

    /// Whether the path no longer leads to the file that we hold.
    pub(crate) fn is_lost(&self) -> bool {
        !matches!(self.file.is_at(&self.directory, &self.name), Ok(true))
    }

    /// Lets go: first the name, while the lock still keeps others out, then the guard, then the
    /// lock. The lock is let go of whatever fails before.
    pub(crate) fn release(mut self, keep_file: bool) -> Result<(), Error> {
        let removed = if keep_file {
            Ok(())
        } else {
            self.remove_file()
        };
        self.guard.release();
        let unlocked = self.file.unlock();
        removed.map_err(|source| {
            Error::new(Kind::Leftover {
                path: self.path.clone(),
                source,
            })
        })?;
        unlocked.map_err(|error| Error::io("unlock", &self.path, error))
    }

    /// Closes our copies of the descriptors and nothing else: what a forked child must do with
    /// its parent's lock.
    pub(crate) fn abandon(self) {}

    fn remove_file(&mut self) -> std::io::Result<()> {
        // Somebody else's file by now, or none: not ours to remove.
        if self.file.is_at(&self.directory, &self.name)? {
            self.guard.allow_removal();
            self.directory.remove(&self.name)?;
        }
        Ok(())
    }
}
