//! Inspecting a key: its lock record, compared with what the kernel reports.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use super::file::Step;
use super::location::{LockDirectory, StoreLocation};
use crate::error::{Error, Kind};
use crate::holder::{Holder, Proof, State, Status};
use crate::key::Key;
use crate::record::{MAX_BYTES, Record};
use crate::sys::attest;
use crate::sys::deletion_guard;
use crate::sys::file::{Directory, LockFile, Lookup};
use crate::sys::process;
use crate::sys::types::{Attested, GuardOwner, LockState};

/// Time for which an unidentified owner of a held lock is searched again. The owner may not have
/// written its lock record yet, or a reader may hold the lock for an instant.
pub(super) const IDENTIFY_TIMEOUT: Duration = Duration::from_millis(100);
pub(super) const IDENTIFY_PAUSE: Duration = Duration::from_micros(500);

/// Result of identifying the holder of a lock that is known to be held.
pub(crate) enum Identified {
    Proven(Box<Holder>),
    /// The lock record does not name the process that has the lock, but may be rewritten in a
    /// moment.
    NotYet(Option<Box<Holder>>),
}

pub(crate) struct Inspection {
    pub(crate) status: Status,
    /// Lock file, if it exists and can be read.
    pub(crate) file: Option<LockFile>,
}

/// Identifies the process that holds the lock of a file.
pub(crate) fn identify(file: &LockFile, path: &Path) -> Identified {
    identify_acquirer(file, path, attest::acquirer(file))
}

fn identify_acquirer(file: &LockFile, path: &Path, acquirer: Option<u32>) -> Identified {
    let record = file
        .read(MAX_BYTES)
        .ok()
        .and_then(|bytes| Record::decode(&bytes).ok());
    // A lock record with `released_at` names the previous owner: the present owner has not written
    // its own lock record yet.
    let Some(record) = record.filter(|record| record.released_at.is_none()) else {
        return Identified::NotYet(None);
    };
    let mut holder = Holder::unknown(path.to_owned());
    match attest::attest(file, acquirer, &record) {
        Attested::Owner(owner) => {
            holder.proof = Proof::Verified;
            holder.pid = Some(owner.pid);
            holder.suspended = owner.suspended;
            holder.command_only = owner.command_only;
            holder.record = Some(record);
            holder.attest_user(process::user_of(owner.pid));
            Identified::Proven(Box::new(holder))
        }
        Attested::NotVisible => {
            holder.proof = Proof::NotVisible;
            holder.record = Some(record);
            holder.attest_user(file.owner());
            Identified::NotYet(Some(Box::new(holder)))
        }
        Attested::Unproven => Identified::NotYet(None),
    }
}

/// Describes the owner of a key whose file was deleted or replaced. The owner is named only if one
/// of its descriptors still shows a locked file whose lock record names this key.
pub(crate) fn owner_without_file(path: &Path, key: &Key, owner: GuardOwner) -> Box<Holder> {
    let mut holder = Holder::unknown(path.to_owned());
    holder.file_gone = true;
    if let Some(pid) = owner.pid
        && let Some(record) = attest::record_of_lost_file(pid, &key.to_string())
    {
        holder.proof = Proof::Verified;
        holder.pid = Some(pid);
        holder.suspended = process::is_suspended(pid);
        holder.command_only = record.command_pid() == Some(pid);
        // A lock record with `released_at` shows that the owner removed the file itself and is
        // releasing the key.
        holder.file_gone = record.released_at.is_none();
        holder.record = Some(record);
    }
    holder.attest_user(owner.uid);
    Box::new(holder)
}

/// Returns the next step of an attempt to acquire a key whose lock file is locked by another
/// process: refuse the claim if that process is identified, otherwise identify it again later.
pub(super) fn holder_step(file: &LockFile, path: &Path) -> Step {
    match identify(file, path) {
        Identified::Proven(holder) => Step::Busy(holder),
        Identified::NotYet(holder) => Step::Undecided(holder),
    }
}

/// Returns the next step of an attempt to acquire a key whose owner has the deletion guard but no
/// lock file: the owner lost the file, or is releasing the key.
pub(super) fn without_file_step(path: &Path, key: &Key, owner: GuardOwner) -> Step {
    let holder = owner_without_file(path, key, owner);
    match holder.pid {
        Some(_) => Step::WithoutFile(holder),
        None => Step::Undecided(Some(holder)),
    }
}

/// Describes the owner of a file that only another user may read. Its pid is left out: without the
/// lock record nothing proves that the process that acquired the lock still has it.
pub(super) fn other_users(path: &Path, uid: Option<u32>) -> Box<Holder> {
    let mut holder = Holder::unknown(path.to_owned());
    holder.proof = Proof::OtherUser;
    holder.attest_user(uid);
    Box::new(holder)
}

/// Describes the holder of a lock for which no owner could be proven: a reader, or an unknown
/// owner.
pub(crate) fn unnamed(directory: &Directory, name: &OsStr, path: &Path) -> Box<Holder> {
    let mut holder = Holder::unknown(path.to_owned());
    // An exclusive lock was refused before. The probe tries a shared lock, which the kernel grants
    // alongside the shared locks of readers but not alongside the exclusive lock of an owner. If
    // the probe succeeds, only readers hold the file.
    if let Ok(Lookup::File(file)) = directory.lookup(name)
        && matches!(file.probe(), Ok(LockState::Free))
    {
        holder.proof = Proof::Reader;
    }
    Box::new(holder)
}

/// Returns the owner of a key in a directory other than the one in which this process creates lock
/// files.
pub(crate) fn held_in(
    found: &LockDirectory,
    key: &Key,
    name: &OsStr,
) -> Result<Option<Box<Holder>>, Error> {
    let status = inspect_in(found, key, name)?.status;
    match status.state {
        State::Held(holder) => Ok(Some(holder)),
        State::Unknown { user, why } => Err(Error::new(Kind::Unknown {
            key: key.to_string(),
            path: status.path,
            user,
            why,
        })),
        _ => Ok(None),
    }
}

pub(crate) fn status(location: &StoreLocation, key: &Key) -> Result<Status, Error> {
    inspect(location, key).map(|inspection| inspection.status)
}

pub(crate) fn inspect(location: &StoreLocation, key: &Key) -> Result<Inspection, Error> {
    let mut best: Option<Inspection> = None;
    for directory in location.existing(Some(key))? {
        let found = inspect_in(&directory, key, &key.file_name())?;
        if found.status.holder().is_some() {
            return Ok(found);
        }
        let is_unknown = |state: &State| matches!(state, State::Unknown { .. });
        let better = match &best {
            None => true,
            Some(best) => {
                let state = &best.status.state;
                matches!(state, State::Free)
                    || (is_unknown(&found.status.state) && !is_unknown(state))
            }
        };
        if better {
            best = Some(found);
        }
    }
    if let Some(best) = best {
        return Ok(best);
    }
    let path = location.path_of(key);
    let dir = path.parent().unwrap_or(Path::new("."));
    let state = match deletion_guard::owner_without_directory(dir, &key.file_name()) {
        Some(owner) => State::Held(owner_without_file(&path, key, owner)),
        None => State::Free,
    };
    Ok(Inspection {
        status: Status {
            key: key.clone(),
            path,
            state,
        },
        file: None,
    })
}

pub(crate) fn list(location: &StoreLocation) -> Result<Vec<Status>, Error> {
    let mut found = Vec::new();
    for lock_directory in location.existing(None)? {
        let LockDirectory::Open(directory) = &lock_directory else {
            continue;
        };
        for name in directory.names()? {
            let Some(key) = name.to_str().and_then(Key::from_file_name) else {
                continue;
            };
            let status = inspect_in(&lock_directory, &key, &name)?.status;
            // A key that was released after the directory was listed is left out of the result.
            if !matches!(status.state, State::Free) {
                found.push(status);
            }
        }
    }
    Ok(found)
}

fn inspect_in(directory: &LockDirectory, key: &Key, name: &OsStr) -> Result<Inspection, Error> {
    let found = |state: State, file: Option<LockFile>, path: PathBuf| Inspection {
        status: Status {
            key: key.clone(),
            path,
            state,
        },
        file,
    };
    let directory = match directory {
        LockDirectory::Open(directory) => directory,
        LockDirectory::NoAccess { path, user } => {
            let state = match deletion_guard::owner_without_directory(path, name) {
                Some(owner) => State::Held(other_users(path, owner.uid)),
                None => State::Unknown {
                    user: user.clone(),
                    why: "this user may not search the directory".to_owned(),
                },
            };
            return Ok(found(state, None, path.clone()));
        }
    };
    let path = directory.path().join(name);
    let give_up_at = Instant::now() + IDENTIFY_TIMEOUT;
    loop {
        let file = match directory.lookup(name)? {
            Lookup::File(file) => file,
            other => {
                let unsearchable = matches!(other, Lookup::Unsearchable);
                let state = without_readable_file(directory, key, name, &path, other);
                // For a directory that cannot be searched, the reported user is the owner of the
                // directory, so the reported path must be that of the directory too.
                let path = if unsearchable && matches!(state, State::Unknown { .. }) {
                    directory.path().to_owned()
                } else {
                    path
                };
                return Ok(found(state, None, path));
            }
        };
        let acquirer = match attest::lock_state(&file)
            .map_err(|error| Error::io("read the lock state of the file", &path, error))?
        {
            LockState::Held { acquirer } => acquirer,
            LockState::Free | LockState::Unknown(_) => {
                // No process holds this file. Search for an owner that has lost an earlier file of
                // the key and still has the deletion guard.
                let state = match deletion_guard::owner(directory, name) {
                    Some(owner) => State::Held(owner_without_file(&path, key, owner)),
                    None => unheld_state(&file, &path)?,
                };
                return Ok(found(state, Some(file), path));
            }
        };
        match identify_acquirer(&file, &path, acquirer) {
            Identified::Proven(holder) => return Ok(found(State::Held(holder), Some(file), path)),
            Identified::NotYet(holder) if Instant::now() >= give_up_at => {
                let holder = holder.unwrap_or_else(|| Box::new(Holder::unknown(path.clone())));
                return Ok(found(State::Held(holder), Some(file), path));
            }
            Identified::NotYet(_) => thread::sleep(IDENTIFY_PAUSE),
        }
    }
}

pub(super) fn without_readable_file(
    directory: &Directory,
    key: &Key,
    name: &OsStr,
    path: &Path,
    lookup: Lookup,
) -> State {
    match (lookup, deletion_guard::owner(directory, name)) {
        (Lookup::NoAccess { id, uid, user }, owner) => {
            match (attest::lock_state_without_access(directory, id), owner) {
                (LockState::Held { .. }, _) => State::Held(other_users(path, Some(uid))),
                (_, Some(owner)) => State::Held(other_users(path, owner.uid.or(Some(uid)))),
                (LockState::Unknown(why), None) => State::Unknown {
                    user,
                    why: why.to_owned(),
                },
                (LockState::Free, None) => State::OtherUser(user),
            }
        }
        (_, Some(owner)) => State::Held(owner_without_file(path, key, owner)),
        (Lookup::Unsearchable, None) => State::Unknown {
            user: directory.owner_name(),
            why: "this user may not search the directory".to_owned(),
        },
        (Lookup::Unusable(why), None) => State::Unusable(why),
        (Lookup::Missing | Lookup::File(_), None) => State::Free,
    }
}

fn unheld_state(file: &LockFile, path: &Path) -> Result<State, Error> {
    let bytes = file
        .read(MAX_BYTES)
        .map_err(|error| Error::io("read", path, error))?;
    Ok(match Record::decode(&bytes) {
        Ok(record) if record.released_at.is_some() => State::Free,
        Ok(mut record) => {
            if let Some(uid) = file.owner() {
                record.attest_user(uid);
            }
            State::Stale(Box::new(record))
        }
        Err(why) => State::Unreadable(why.to_string()),
    })
}
