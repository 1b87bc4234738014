//! The lock protocol: open, lock, deletion guard, re-check, write; and back.
//!
//! The order is what makes it safe; docs/lock-protocol.md gives the reasons.

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use super::foreign;
use super::inspect::{self, Identified, UNDECIDED};
use super::place::Target;
use crate::error::{Error, Kind};
use crate::holder::Holder;
use crate::record::{MAX_BYTES, Record, Unreadable};
use crate::sys::file::{Directory, FileId, LockFile};
use crate::sys::guard::{Guard, Take};
use crate::sys::testimony::Opened;

/// How long an owner that has the guard but not the file is taken to be letting go.
const LETTING_GO: Duration = Duration::from_millis(4);
const FIRST_PAUSE: Duration = Duration::from_micros(20);
const LONGEST_PAUSE: Duration = Duration::from_millis(1);
/// How often the file may be replaced under our hands.
const RETRIES: u32 = 10_000;
/// A kept file is a multiple of this long: the blocks that a later record needs exist already.
const KEPT_UNIT: usize = 4096;
/// A kept file that a record once made longer than its unit stays as long, up to this much.
const KEPT_MOST: usize = 64 << 10;

/// A lock that this process holds.
#[derive(Debug)]
pub(crate) struct Held {
    directory: Directory,
    file: LockFile,
    guard: Guard,
    name: OsString,
    path: PathBuf,
    network: bool,
    /// The file stays when the lock is released, and its length is rounded up.
    kept: bool,
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
    let mut undecided_since: Option<Instant> = None;
    let mut pause = FIRST_PAUSE;
    for _ in 0..RETRIES {
        let (holder, patience) = match step(&target)? {
            Step::Locked(file, guard) => return taken(target, file, guard),
            Step::Busy(holder) => return Ok(Attempt::Busy(holder, target)),
            Step::Again => continue,
            Step::Undecided(holder) => (holder, UNDECIDED),
            Step::WithoutFile(holder) => {
                let patience = if holder.file_gone {
                    LETTING_GO
                } else {
                    UNDECIDED
                };
                (Some(holder), patience)
            }
        };
        if undecided_since.get_or_insert_with(Instant::now).elapsed() >= patience {
            let unnamed = || inspect::unnamed(&target.directory, &target.name, target.path());
            return Ok(Attempt::Busy(holder.unwrap_or_else(unnamed), target));
        }
        thread::sleep(pause);
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
    Err(Error::hostile(
        target.path(),
        "it is being replaced without end",
    ))
}

pub(super) enum Step {
    Locked(LockFile, Guard),
    Busy(Box<Holder>),
    /// The file was replaced under our hands.
    Again,
    /// Somebody has it; who, may show in a moment.
    Undecided(Option<Box<Holder>>),
    /// Somebody has the guard but not the file: it lost it, or is just letting go.
    WithoutFile(Box<Holder>),
}

fn step(target: &Target) -> Result<Step, Error> {
    let path = target.path();
    let file = match target.directory.open_or_create(&target.name)? {
        Opened::File(file) => file,
        Opened::Foreign(foreign) => return foreign::step(target, &foreign),
    };
    if !file
        .try_lock()
        .map_err(|error| Error::io("lock", path, error))?
    {
        return Ok(match inspect::identify(&file, path) {
            Identified::Proven(holder) => Step::Busy(holder),
            Identified::NotYet(holder) => Step::Undecided(holder),
        });
    }
    let mut guard = None;
    let refused = match guarded(target, &file, &mut guard) {
        Ok(None) => return Ok(Step::Locked(file, guard.unwrap_or_default())),
        Ok(Some(refused)) => Ok(refused),
        Err(error) => Err(error),
    };
    back_out(target, &file, guard);
    refused
}

/// With the lock taken: everything that may still stand in the way.
fn guarded(
    target: &Target,
    file: &LockFile,
    guard: &mut Option<Guard>,
) -> Result<Option<Step>, Error> {
    let path = target.path();
    let (directory, name) = (&target.directory, target.name.as_os_str());
    let is_there = || {
        file.is_at(directory, name)
            .map_err(|error| Error::io("look at", path, error))
    };
    // The previous owner may have removed it between our opening and our locking it.
    if !is_there()? {
        return Ok(Some(Step::Again));
    }
    match Guard::take(directory, name) {
        Ok(Take::Taken(taken)) => *guard = Some(taken),
        Ok(Take::Held(owner)) => {
            return Ok(Some(inspect::without_file_step(path, &target.key, owner)));
        }
        Err(error) => return Err(Error::io("guard", path, error)),
    }
    // And again, after the guard: see `Guard::take`.
    if !is_there()? {
        return Ok(Some(Step::Again));
    }
    match target.holder_elsewhere()? {
        Some(holder) => Ok(Some(Step::Busy(holder))),
        None => Ok(None),
    }
}

/// Undoes an attempt, also for a forked child that has copies of the descriptors. Removes a file
/// that this attempt created, if it is still there: the lock on it keeps others from owning it.
fn back_out(target: &Target, file: &LockFile, guard: Option<Guard>) {
    let (directory, name) = (&target.directory, target.name.as_os_str());
    let mut guard = guard.unwrap_or_default();
    if file.created && matches!(file.is_at(directory, name), Ok(true)) {
        guard.allow_removal();
        let _ = directory.remove(name);
    }
    guard.release();
    let _ = file.unlock();
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
        kept: false,
        directory: target.directory,
        file,
        guard,
        name: target.name,
        path,
    };
    Ok(Attempt::Taken(held, previous))
}

/// Where a lock file is, and which one it is.
#[derive(Debug)]
pub(crate) struct FilePlace {
    directory: Directory,
    name: OsString,
    path: PathBuf,
    id: FileId,
}

impl FilePlace {
    /// Whether the path no longer leads to that file.
    pub(crate) fn is_lost(&self) -> bool {
        is_lost(&self.directory, &self.path, &self.name, self.id)
    }
}

fn is_lost(directory: &Directory, path: &Path, name: &OsStr, id: FileId) -> bool {
    !matches!(directory.is_reached_by(path, name, id), Ok(true))
}

impl Held {
    pub(crate) fn place(&self) -> std::io::Result<FilePlace> {
        Ok(FilePlace {
            directory: self.directory.try_clone()?,
            name: self.name.clone(),
            path: self.path.clone(),
            id: self.file.id(),
        })
    }

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

    /// Leaves the file in place when the lock is released. To be called before the first write.
    pub(crate) fn keep_file(&mut self) {
        self.kept = true;
        if self.file.created {
            self.file.overwrite_in_place();
        }
    }

    pub(crate) fn is_kept(&self) -> bool {
        self.kept
    }

    pub(crate) fn write(&mut self, record: &Record) -> Result<(), Error> {
        let mut bytes = record.encode();
        if self.kept {
            pad(&mut bytes, self.file.size());
        }
        self.file
            .write(&bytes)
            .map_err(|error| Error::io("write the record to", &self.path, error))
    }

    /// Whether the path no longer leads to the file that we hold.
    pub(crate) fn is_lost(&self) -> bool {
        is_lost(&self.directory, &self.path, &self.name, self.file.id())
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

/// Fills up with blanks, which readers of a record pass over.
fn pad(bytes: &mut Vec<u8>, present: u64) {
    let present = usize::try_from(present).map_or(KEPT_MOST, |size| size.min(KEPT_MOST));
    let length = bytes.len().next_multiple_of(KEPT_UNIT).max(present);
    if length > bytes.len() {
        bytes.resize(length - 1, b' ');
        bytes.push(b'\n');
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kept_record_fills_whole_units_and_never_becomes_shorter() {
        for (record, present, expected) in [
            (600, 0, 4096),
            (600, 600, 4096),
            (600, 8192, 8192),
            (4096, 0, 4096),
            (4097, 4096, 8192),
            (600, 1 << 30, KEPT_MOST),
            (100_000, 0, 102_400),
        ] {
            let mut bytes = vec![b'x'; record];
            pad(&mut bytes, present);
            assert_eq!(bytes.len(), expected, "{record} bytes over {present}");
            assert_eq!(bytes.trim_ascii_end().len(), record);
        }
    }
}
