//! Another user's file at the path of a lock file.
//!
//! Another user's lock file is replaced only if this user alone may write the directory and the
//! kernel shows that no process holds the file. If a process holds the file, the claim is refused
//! and the error names the owner. If the kernel does not show the lock, the claim is refused too: a
//! file that looks abandoned may be held, and replacing it would admit a second owner.

use std::ffi::{OsStr, OsString};

use super::file::Step;
use super::inspect;
use super::location::LockTarget;
use crate::error::{Error, Kind};
use crate::sys::attest;
use crate::sys::deletion_guard::{self, DeletionGuard};
use crate::sys::types::{ForeignFile, GuardAttempt, GuardOwner, LockState};

/// Continues an attempt to acquire a key whose lock file belongs to another user.
pub(super) fn step(target: &LockTarget, foreign: &ForeignFile) -> Result<Step, Error> {
    let path = target.path();
    let is_locked = match &foreign.file {
        Some(file) => file
            .try_lock()
            .map_err(|error| Error::io("lock", path, error))?,
        None => false,
    };
    let mut guard = DeletionGuard::default();
    let outcome = decide(target, foreign, is_locked, &mut guard);
    guard.release();
    if let Some(file) = foreign.file.as_ref().filter(|_| is_locked) {
        let _ = file.unlock();
    }
    outcome
}

fn decide(
    target: &LockTarget,
    foreign: &ForeignFile,
    is_locked: bool,
    guard: &mut DeletionGuard,
) -> Result<Step, Error> {
    let (path, directory) = (target.path(), &target.directory);
    if let Some(owner) = guard_owner(target, guard)? {
        return Ok(match &foreign.file {
            Some(_) if is_locked => inspect::without_file_step(path, &target.key, owner),
            Some(file) => inspect::holder_step(file, path),
            // This user may not open the other user's file to test its lock. A living process has
            // the deletion guard of the key, so the key counts as held.
            None => Step::Busy(inspect::other_users(path, owner.uid.or(Some(foreign.uid)))),
        });
    }
    let state = match &foreign.file {
        Some(_) if is_locked => LockState::Free,
        Some(file) => return Ok(inspect::holder_step(file, path)),
        None => attest::lock_state_without_access(directory, foreign.id),
    };
    match state {
        LockState::Held { .. } => Ok(Step::Busy(inspect::other_users(path, Some(foreign.uid)))),
        LockState::Unknown(why) => Err(unknown(target, foreign, why)),
        LockState::Free if !directory.is_ours_alone() => Err(Error::hostile(
            path,
            format!(
                "no process holds it, but the file belongs to {}, and other users may write to \
                 its directory",
                foreign.user
            ),
        )),
        LockState::Free => replace(target, foreign, guard),
    }
}

/// Returns the owner that has the deletion guard. If there is none and the file may be replaced,
/// this function acquires the guard, so that no other process in this network namespace can become
/// the owner. Otherwise it leaves the guard alone: the user of the file may be about to acquire it.
fn guard_owner(
    target: &LockTarget,
    guard: &mut DeletionGuard,
) -> Result<Option<GuardOwner>, Error> {
    let (directory, name) = (&target.directory, &target.name);
    if !directory.is_ours_alone() {
        return Ok(deletion_guard::owner(directory, name));
    }
    match DeletionGuard::try_acquire(directory, name) {
        Ok(GuardAttempt::Acquired(taken)) => *guard = taken,
        Ok(GuardAttempt::Held(owner)) => return Ok(Some(owner)),
        Err(error) => {
            let act = "acquire the deletion guard of the lock file";
            return Err(Error::io(act, target.path(), error));
        }
    }
    Ok(None)
}

/// Removes the file, so that the next attempt creates one that belongs to this user. A file whose
/// lock this process holds is removed as its owner would on release. A file that cannot be opened
/// is renamed first. A process that locked it before the rename is listed in the kernel's lock
/// table. A process that locks it after the rename finds that the file is not at its path, and
/// retries.
fn replace(
    target: &LockTarget,
    foreign: &ForeignFile,
    guard: &DeletionGuard,
) -> Result<Step, Error> {
    let (path, directory, name) = (target.path(), &target.directory, &target.name);
    let failed = |error| Error::io("replace", path, error);
    if let Some(file) = &foreign.file {
        if !file.is_at(directory, name).map_err(failed)? {
            return Ok(Step::Retry);
        }
        directory.remove(name).map_err(failed)?;
    } else {
        if !guard.is_exclusive() {
            let why = "another user has bound the socket name of its deletion guard";
            return Err(unknown(target, foreign, why));
        }
        let aside = aside(name);
        directory.rename(name, &aside).map_err(failed)?;
        let is_same = matches!(directory.has_entry(&aside, foreign.id), Ok(true));
        if !is_same || attest::lock_state_without_access(directory, foreign.id) != LockState::Free {
            directory.rename_to_new(&aside, name).map_err(failed)?;
            return Ok(Step::Retry);
        }
        directory.remove(&aside).map_err(failed)?;
    }
    tracing::warn!(
        path = %path.display(),
        user = foreign.user,
        "replaced another user's lock file, which no process held"
    );
    Ok(Step::Retry)
}

fn aside(name: &OsStr) -> OsString {
    let mut aside = OsString::from(".");
    aside.push(name);
    aside.push(".replaced");
    aside
}

fn unknown(target: &LockTarget, foreign: &ForeignFile, why: &str) -> Error {
    Error::new(Kind::Unknown {
        key: target.key.to_string(),
        path: target.path().to_owned(),
        user: foreign.user.clone(),
        why: why.to_owned(),
    })
}
