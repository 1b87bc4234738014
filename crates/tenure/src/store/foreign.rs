//! Another user's file where a lock file is wanted.
//!
//! It is replaced only if we alone may write the directory and the kernel shows that nobody holds it.
//! Held: its owner is named. If the kernel does not show which, the key is refused: a file that looks
//! abandoned from here may be held.

use std::ffi::{OsStr, OsString};

use super::file::Step;
use super::inspect::{self, Identified};
use super::place::Target;
use crate::error::{Error, Kind};
use crate::sys::attest;
use crate::sys::file::LockFile;
use crate::sys::guard::{self, Guard, Seen, Take};
use crate::sys::testimony::{Foreign, GuardOwner, Word};

/// Decides what becomes of an attempt to take a key whose file is another user's.
pub(super) fn step(target: &Target, foreign: &Foreign) -> Result<Step, Error> {
    let path = target.path();
    let is_locked = match &foreign.file {
        Some(file) => file
            .try_lock()
            .map_err(|error| Error::io("lock", path, error))?,
        None => false,
    };
    let mut guard = Guard::default();
    let outcome = decide(target, foreign, is_locked, &mut guard);
    guard.release();
    if let Some(file) = foreign.file.as_ref().filter(|_| is_locked) {
        let _ = file.unlock();
    }
    outcome
}

fn decide(
    target: &Target,
    foreign: &Foreign,
    is_locked: bool,
    guard: &mut Guard,
) -> Result<Step, Error> {
    let (path, directory) = (target.path(), &target.directory);
    if let Some(owner) = guard_owner(target, guard)? {
        return Ok(match &foreign.file {
            Some(_) if is_locked => inspect::without_file_step(path, &target.key, owner),
            Some(file) => named(file, target),
            // Most likely it is this file that it holds.
            None => Step::Busy(inspect::other_users(path, owner.uid.or(Some(foreign.uid)))),
        });
    }
    let word = match &foreign.file {
        Some(_) if is_locked => Word::Free,
        Some(file) => return Ok(named(file, target)),
        None => attest::peek_closed(directory, foreign.id),
    };
    match word {
        Word::Held { .. } => Ok(Step::Busy(inspect::other_users(path, Some(foreign.uid)))),
        Word::Unknown(why) => Err(unknown(target, foreign, why)),
        Word::Free if !directory.is_ours_alone() => Err(Error::hostile(
            path,
            format!(
                "nobody holds it, but the file belongs to {}, and others may write to its directory",
                foreign.user
            ),
        )),
        Word::Free => replace(target, foreign, guard),
    }
}

/// The owner that has the deletion guard. If there is none and the file may be replaced, the guard is
/// taken: from then on nobody else in this network namespace becomes the owner. Otherwise it is left
/// alone, since the file's rightful owner may be about to take it.
fn guard_owner(target: &Target, guard: &mut Guard) -> Result<Option<GuardOwner>, Error> {
    let (directory, name) = (&target.directory, &target.name);
    if !directory.is_ours_alone() {
        return Ok(match guard::look(directory, name) {
            Seen::Owner(owner) => Some(owner),
            Seen::Nobody => None,
        });
    }
    match Guard::take(directory, name) {
        Ok(Take::Taken(taken)) => *guard = taken,
        Ok(Take::Held(owner)) => return Ok(Some(owner)),
        Err(error) => return Err(Error::io("guard", target.path(), error)),
    }
    Ok(None)
}

/// The owner of another user's file that may be read.
fn named(file: &LockFile, target: &Target) -> Step {
    match inspect::identify(file, target.path()) {
        Identified::Proven(holder) => Step::Busy(holder),
        Identified::NotYet(holder) => Step::Undecided(holder),
    }
}

/// Removes the file, so that the next attempt creates one of our own. With its lock in our hands that
/// is what its owner would do on release. A file that we may not open is put aside first: whoever
/// locked it before is in the kernel's table, and whoever locks it later finds that it is not at its
/// path.
fn replace(target: &Target, foreign: &Foreign, guard: &Guard) -> Result<Step, Error> {
    let (path, directory, name) = (target.path(), &target.directory, &target.name);
    let failed = |error| Error::io("replace", path, error);
    if let Some(file) = &foreign.file {
        if !file.is_at(directory, name).map_err(failed)? {
            return Ok(Step::Again);
        }
        directory.remove(name).map_err(failed)?;
    } else {
        if !guard.is_complete() {
            let why = "another user has bound the name of its deletion guard";
            return Err(unknown(target, foreign, why));
        }
        let aside = aside(name);
        directory.rename(name, &aside).map_err(failed)?;
        let is_same = matches!(directory.leads_to(&aside, foreign.id), Ok(true));
        if !is_same || attest::peek_closed(directory, foreign.id) != Word::Free {
            directory.rename_to_new(&aside, name).map_err(failed)?;
            return Ok(Step::Again);
        }
        directory.remove(&aside).map_err(failed)?;
    }
    tracing::warn!(
        path = %path.display(),
        user = foreign.user,
        "replaced a lock file of another user that nobody held"
    );
    Ok(Step::Again)
}

fn aside(name: &OsStr) -> OsString {
    let mut aside = OsString::from(".");
    aside.push(name);
    aside.push(".replaced");
    aside
}

fn unknown(target: &Target, foreign: &Foreign, why: &str) -> Error {
    Error::new(Kind::Unknown {
        key: target.key.to_string(),
        path: target.path().to_owned(),
        user: foreign.user.clone(),
        why: why.to_owned(),
    })
}
