//! Looking at a key: what the file says, held against what the kernel says.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use super::file::Step;
use super::place::{Found, Place};
use crate::error::{Error, Kind};
use crate::holder::{Holder, Proof, State, Status};
use crate::key::Key;
use crate::record::{MAX_BYTES, Record};
use crate::sys::attest;
use crate::sys::file::{Directory, LockFile, Look};
use crate::sys::guard::{self, Seen};
use crate::sys::process;
use crate::sys::testimony::{Attested, GuardOwner, Word};

/// How long a held lock without a provable owner is looked at again: its owner may be between
/// taking the lock and writing the record, and a reader may have it for an instant.
pub(super) const UNDECIDED: Duration = Duration::from_millis(100);
pub(super) const UNDECIDED_PAUSE: Duration = Duration::from_micros(500);

/// Who holds a lock that is known to be held.
pub(crate) enum Identified {
    Proven(Box<Holder>),
    /// The record does not name the process that has the lock, as it may in a moment.
    NotYet(Option<Box<Holder>>),
}

/// A key, looked at closely enough to stop its owner.
pub(crate) struct Inspection {
    pub(crate) status: Status,
    /// The lock file, if there is one and it can be read.
    pub(crate) file: Option<LockFile>,
}

/// Who holds this file's lock.
pub(crate) fn identify(file: &LockFile, path: &Path) -> Identified {
    identify_taker(file, path, attest::taker(file))
}

fn identify_taker(file: &LockFile, path: &Path, taker: Option<u32>) -> Identified {
    let record = file
        .read(MAX_BYTES)
        .ok()
        .and_then(|bytes| Record::decode(&bytes).ok());
    // A record that was left on release names an owner that is none any more.
    let Some(record) = record.filter(|record| record.released_at.is_none()) else {
        return Identified::NotYet(None);
    };
    let mut holder = Holder::unknown(path.to_owned());
    match attest::attest(file, taker, &record) {
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

/// The owner of a key whose file was deleted or replaced, named only if it can still be shown to
/// have a record of this key locked.
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
        // It removed the file itself, and is about to let go.
        holder.file_gone = record.released_at.is_none();
        holder.record = Some(record);
    }
    holder.attest_user(owner.uid);
    Box::new(holder)
}

/// An attempt that met an owner whose file is not at the path: it lost the file, or is letting go.
pub(super) fn without_file_step(path: &Path, key: &Key, owner: GuardOwner) -> Step {
    let holder = owner_without_file(path, key, owner);
    match holder.pid {
        Some(_) => Step::WithoutFile(holder),
        None => Step::Undecided(Some(holder)),
    }
}

/// The owner of a file that only another user may read. Not even its pid is told: without the record
/// nothing says that it is still the taker's.
pub(super) fn other_users(path: &Path, uid: Option<u32>) -> Box<Holder> {
    let mut holder = Holder::unknown(path.to_owned());
    holder.proof = Proof::OtherUser;
    holder.attest_user(uid);
    Box::new(holder)
}

/// The holder of a lock that no process could be proven to have: a reader, or an unknown owner.
pub(crate) fn unnamed(directory: &Directory, name: &OsStr, path: &Path) -> Box<Holder> {
    let mut holder = Holder::unknown(path.to_owned());
    // A shared lock can be had beside other shared ones, but not beside an owner's.
    if let Ok(Look::File(file)) = directory.look(name)
        && matches!(file.probe(), Ok(true))
    {
        holder.proof = Proof::Reader;
    }
    Box::new(holder)
}

/// The owner of a key in a directory in which we would not create its file.
pub(crate) fn held_in(
    found: &Found,
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

pub(crate) fn status(place: &Place, key: &Key) -> Result<Status, Error> {
    inspect(place, key).map(|inspection| inspection.status)
}

pub(crate) fn inspect(place: &Place, key: &Key) -> Result<Inspection, Error> {
    let mut best: Option<Inspection> = None;
    for found in place.existing(Some(key))? {
        let found = inspect_in(&found, key, &key.file_name())?;
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
    let path = place.path_of(key);
    let dir = path.parent().unwrap_or(Path::new("."));
    let state = match guard::look_without_directory(dir, &key.file_name()) {
        Seen::Owner(owner) => State::Held(owner_without_file(&path, key, owner)),
        Seen::Nobody => State::Free,
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

pub(crate) fn list(place: &Place) -> Result<Vec<Status>, Error> {
    let mut found = Vec::new();
    for place in place.existing(None)? {
        let Found::Open(directory) = &place else {
            continue;
        };
        for name in directory.names()? {
            let Some(key) = name.to_str().and_then(Key::from_file_name) else {
                continue;
            };
            let status = inspect_in(&place, &key, &name)?.status;
            // Released between listing and looking.
            if !matches!(status.state, State::Free) {
                found.push(status);
            }
        }
    }
    Ok(found)
}

fn inspect_in(place: &Found, key: &Key, name: &OsStr) -> Result<Inspection, Error> {
    let found = |state: State, file: Option<LockFile>, path: PathBuf| Inspection {
        status: Status {
            key: key.clone(),
            path,
            state,
        },
        file,
    };
    let directory = match place {
        Found::Open(directory) => directory,
        Found::Closed { path, user } => {
            let state = match guard::look_without_directory(path, name) {
                Seen::Owner(owner) => State::Held(other_users(path, owner.uid)),
                Seen::Nobody => State::Unknown {
                    user: user.clone(),
                    why: "the directory may not be searched".to_owned(),
                },
            };
            return Ok(found(state, None, path.clone()));
        }
    };
    let path = directory.path().join(name);
    let give_up_at = Instant::now() + UNDECIDED;
    loop {
        let file = match directory.look(name)? {
            Look::File(file) => file,
            other => {
                return Ok(found(
                    without_readable_file(directory, key, name, &path, other),
                    None,
                    path,
                ));
            }
        };
        let taker = match attest::peek(&file)
            .map_err(|error| Error::io("look at the lock of", &path, error))?
        {
            Word::Held { taker } => taker,
            Word::Free | Word::Unknown(_) => {
                // Nobody has the lock of this file; the owner may have lost another one.
                let state = match guard::look(directory, name) {
                    Seen::Owner(owner) => State::Held(owner_without_file(&path, key, owner)),
                    Seen::Nobody => nobody_holds(&file, &path)?,
                };
                return Ok(found(state, Some(file), path));
            }
        };
        match identify_taker(&file, &path, taker) {
            Identified::Proven(holder) => return Ok(found(State::Held(holder), Some(file), path)),
            Identified::NotYet(holder) if Instant::now() >= give_up_at => {
                let holder = holder.unwrap_or_else(|| Box::new(Holder::unknown(path.clone())));
                return Ok(found(State::Held(holder), Some(file), path));
            }
            Identified::NotYet(_) => thread::sleep(UNDECIDED_PAUSE),
        }
    }
}

pub(super) fn without_readable_file(
    directory: &Directory,
    key: &Key,
    name: &OsStr,
    path: &Path,
    look: Look,
) -> State {
    match (look, guard::look(directory, name)) {
        (Look::Closed { id, uid, user }, seen) => {
            match (attest::peek_closed(directory, id), seen) {
                (Word::Held { .. }, _) => State::Held(other_users(path, Some(uid))),
                (_, Seen::Owner(owner)) => State::Held(other_users(path, owner.uid.or(Some(uid)))),
                (Word::Unknown(why), Seen::Nobody) => State::Unknown {
                    user,
                    why: why.to_owned(),
                },
                (Word::Free, Seen::Nobody) => State::OtherUser(user),
            }
        }
        (_, Seen::Owner(owner)) => State::Held(owner_without_file(path, key, owner)),
        (Look::Hidden, Seen::Nobody) => State::Unknown {
            user: directory.owner_name(),
            why: "its directory may not be searched".to_owned(),
        },
        (Look::Unusable(why), Seen::Nobody) => State::Unusable(why),
        (Look::Missing | Look::File(_), Seen::Nobody) => State::Free,
    }
}

fn nobody_holds(file: &LockFile, path: &Path) -> Result<State, Error> {
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
