//! The lock protocol: open, lock, acquire the deletion guard, check the path again, write; and
//! release.
//!
//! The steps that acquire and release a lock file must stay in their order: in another order, two
//! processes could own one key. docs/lock-protocol.md gives the reason for each step.

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use super::foreign;
use super::inspect::{self, IDENTIFY_TIMEOUT};
use super::location::LockTarget;
use crate::error::{Error, Kind};
use crate::holder::Holder;
use crate::record::{MAX_BYTES, Record, Unreadable};
use crate::sys::deletion_guard::DeletionGuard;
use crate::sys::file::{Directory, FileId, LockFile};
use crate::sys::types::{GuardAttempt, Opened};

/// Time for which an owner without a lock file is assumed to be releasing the key, not to have lost
/// the file.
const RELEASE_GRACE: Duration = Duration::from_millis(4);
const FIRST_PAUSE: Duration = Duration::from_micros(20);
const LONGEST_PAUSE: Duration = Duration::from_millis(1);
/// Maximum number of retries while other processes keep replacing the file. The attempt then fails,
/// so that it ends in any case.
const RETRIES: u32 = 10_000;
/// Unit of the length of a lock file that is kept on release. The padding leaves room for later
/// lock records, which then need no new blocks on a full disk.
const KEPT_UNIT: usize = 4096;
/// Maximum length to which a lock record is padded to preserve the file's length. Up to this length
/// a kept file never becomes shorter, so its blocks stay allocated.
const KEPT_MAX: usize = 64 << 10;

/// A lock that this process holds: the locked file, its deletion guard and its directory. They are
/// needed to rewrite the lock record and to release the lock.
#[derive(Debug)]
pub(crate) struct Held {
    directory: Directory,
    file: LockFile,
    guard: DeletionGuard,
    name: OsString,
    path: PathBuf,
    network: bool,
    /// True if the file is not removed on release. Its length is then rounded up to [`KEPT_UNIT`].
    kept: bool,
}

/// Lock record that the file contained when the lock was acquired; `None` for a new file.
pub(crate) type Previous = Option<Result<Box<Record>, Unreadable>>;

/// Outcome of one attempt to acquire a lock.
#[derive(Debug)]
pub(crate) enum Attempt {
    /// The lock is held by this process. The file still contains the lock record of the previous
    /// owner, if that owner left one.
    Acquired(Held, Previous),
    Busy(Box<Holder>, LockTarget),
}

/// Tries to acquire the lock. Waits only to identify the owner, or while an owner is releasing the
/// key.
pub(crate) fn try_acquire(target: LockTarget) -> Result<Attempt, Error> {
    let mut undecided_since: Option<Instant> = None;
    let mut pause = FIRST_PAUSE;
    for _ in 0..RETRIES {
        let (holder, patience) = match step(&target)? {
            Step::Locked(file, guard) => return acquired(target, file, guard),
            Step::Busy(holder) => return Ok(Attempt::Busy(holder, target)),
            Step::Retry => continue,
            Step::Undecided(holder) => (holder, IDENTIFY_TIMEOUT),
            Step::WithoutFile(holder) => {
                let patience = if holder.file_gone {
                    RELEASE_GRACE
                } else {
                    IDENTIFY_TIMEOUT
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
        "other processes replace the file faster than it can be locked",
    ))
}

pub(super) enum Step {
    Locked(LockFile, DeletionGuard),
    Busy(Box<Holder>),
    /// Another process removed or replaced the lock file at the path during the attempt. The caller
    /// tries again with the file that is now at the path.
    Retry,
    /// Another process holds the lock and could not be identified yet: it may not have written its
    /// lock record. The caller tries again to identify it.
    Undecided(Option<Box<Holder>>),
    /// Another process has the deletion guard of the key, but no lock file is at the path: that
    /// owner has lost its file, or is releasing the key.
    WithoutFile(Box<Holder>),
}

fn step(target: &LockTarget) -> Result<Step, Error> {
    let path = target.path();
    let file = match target.directory.open_or_create_file(&target.name)? {
        Opened::File(file) => file,
        Opened::Foreign(foreign) => return foreign::step(target, &foreign),
    };
    if !file
        .try_lock()
        .map_err(|error| Error::io("lock", path, error))?
    {
        return Ok(inspect::holder_step(&file, path));
    }
    let mut guard = None;
    let refused = match check_locked(target, &file, &mut guard) {
        Ok(None) => return Ok(Step::Locked(file, guard.unwrap_or_default())),
        Ok(Some(refused)) => Ok(refused),
        Err(error) => Err(error),
    };
    back_out(target, &file, guard);
    refused
}

/// Performs the checks that remain after this process has locked the file: the path still leads to
/// it, no other process has the deletion guard, and the key is not held in the store's second
/// directory. Returns `None` if all pass: this process then owns the key.
fn check_locked(
    target: &LockTarget,
    file: &LockFile,
    guard: &mut Option<DeletionGuard>,
) -> Result<Option<Step>, Error> {
    let path = target.path();
    let (directory, name) = (&target.directory, target.name.as_os_str());
    let is_at_path = || {
        file.is_at(directory, name)
            .map_err(|error| Error::io("inspect", path, error))
    };
    // The previous owner may have removed the lock file after this process opened it and before
    // this process locked it. Another process could then create and lock a new file.
    if !is_at_path()? {
        return Ok(Some(Step::Retry));
    }
    match DeletionGuard::try_acquire(directory, name) {
        Ok(GuardAttempt::Acquired(taken)) => *guard = Some(taken),
        Ok(GuardAttempt::Held(owner)) => {
            return Ok(Some(inspect::without_file_step(path, &target.key, owner)));
        }
        Err(error) => {
            let act = "acquire the deletion guard of the lock file";
            return Err(Error::io(act, path, error));
        }
    }
    // Another process ignores a deletion guard that is bound but does not listen yet (see `bind`).
    // This process may have stalled in that state while its file was replaced, so the path is
    // checked again.
    if !is_at_path()? {
        return Ok(Some(Step::Retry));
    }
    Ok(target.holder_elsewhere()?.map(Step::Busy))
}

/// Undoes an attempt to acquire a lock, also for copies of the descriptors in a forked child. A
/// file that the attempt created is removed if it is still at the path: while it is locked, no
/// other process can own it.
fn back_out(target: &LockTarget, file: &LockFile, guard: Option<DeletionGuard>) {
    let (directory, name) = (&target.directory, target.name.as_os_str());
    let mut guard = guard.unwrap_or_default();
    if file.created && matches!(file.is_at(directory, name), Ok(true)) {
        guard.allow_removal();
        let _ = directory.remove(name);
    }
    guard.release();
    let _ = file.unlock();
}

fn acquired(target: LockTarget, file: LockFile, guard: DeletionGuard) -> Result<Attempt, Error> {
    let path = target.path().to_owned();
    if target.own_directory {
        target.directory.pin_against_tmpfiles();
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
    Ok(Attempt::Acquired(held, previous))
}

/// Check that a path still leads to the same lock file. If it does not, another process may own the
/// key, and the owner has lost it.
#[derive(Debug)]
pub(crate) struct LossCheck {
    directory: Directory,
    name: OsString,
    path: PathBuf,
    id: FileId,
}

impl LossCheck {
    /// True if the path no longer leads to the file.
    pub(crate) fn is_lost(&self) -> bool {
        is_lost(&self.directory, &self.path, &self.name, self.id)
    }
}

fn is_lost(directory: &Directory, path: &Path, name: &OsStr, id: FileId) -> bool {
    !matches!(directory.has_entry_at(path, name, id), Ok(true))
}

impl Held {
    pub(crate) fn loss_check(&self) -> std::io::Result<LossCheck> {
        Ok(LossCheck {
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

    pub(crate) fn guard(&self) -> &DeletionGuard {
        &self.guard
    }

    /// True if the lock file is on a network file system, which other machines may share. The file
    /// is then kept on release, because a removed file may still be open on another machine.
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

    /// Keeps the file on release. Must be called before the first write, because copy-on-write can
    /// be turned off only for an empty file.
    pub(crate) fn keep_file(&mut self) {
        self.kept = true;
        if self.file.created {
            self.file.overwrite_in_place();
        }
    }

    /// Releases the lock and leaves the file and its lock record unchanged, as after a crash.
    pub(crate) fn release_only(mut self) -> Result<(), Error> {
        self.kept = true;
        self.release()
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
            .map_err(|error| Error::io("write the lock record to", &self.path, error))
    }

    pub(crate) fn is_lost(&self) -> bool {
        is_lost(&self.directory, &self.path, &self.name, self.file.id())
    }

    /// Releases the lock. The file is removed first, unless it is kept: while the lock is held, no
    /// other process can own the file that is removed. The deletion guard follows, then the lock,
    /// which is released even if a step before it fails.
    pub(crate) fn release(mut self) -> Result<(), Error> {
        let removed = if self.kept {
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

    /// Closes the descriptors of a forked child without unlocking, because unlocking would release
    /// the lock of its parent.
    pub(crate) fn abandon(self) {}

    fn remove_file(&mut self) -> std::io::Result<()> {
        // The file at the path is removed only if it is the locked one: another process may have
        // put its own file there.
        if self.file.is_at(&self.directory, &self.name)? {
            self.guard.allow_removal();
            self.directory.remove(&self.name)?;
        }
        Ok(())
    }
}

/// Pads the record with blanks, which readers ignore, to a multiple of [`KEPT_UNIT`] and at least
/// the present length of the file.
fn pad(bytes: &mut Vec<u8>, present: u64) {
    let present = usize::try_from(present).map_or(KEPT_MAX, |size| size.min(KEPT_MAX));
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
    fn kept_record_is_padded_to_whole_units_and_never_shortens_the_file() {
        for (record, present, expected) in [
            (600, 0, 4096),
            (600, 600, 4096),
            (600, 8192, 8192),
            (4096, 0, 4096),
            (4097, 4096, 8192),
            (600, 1 << 30, KEPT_MAX),
            (100_000, 0, 102_400),
        ] {
            let mut bytes = vec![b'x'; record];
            pad(&mut bytes, present);
            assert_eq!(bytes.len(), expected, "{record} bytes over {present}");
            assert_eq!(bytes.trim_ascii_end().len(), record);
        }
    }
}
