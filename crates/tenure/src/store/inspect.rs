//! Looking at a key: what the file says, held against what the kernel says.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use super::place::Place;
use crate::error::Error;
use crate::holder::{Holder, Proof, State, Status};
use crate::key::Key;
use crate::record::{MAX_BYTES, Record};
use crate::sys::attest;
use crate::sys::file::{Directory, LockFile, Look};
use crate::sys::guard::{self, Seen};
use crate::sys::process;
use crate::sys::testimony::{Attested, Word};

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
            Identified::Proven(Box::new(holder))
        }
        Attested::NotVisible => {
            holder.proof = Proof::NotVisible;
            holder.record = Some(record);
            Identified::NotYet(Some(Box::new(holder)))
        }
        Attested::Unproven => Identified::NotYet(None),
    }
}

/// The owner of a key whose file was deleted or replaced, named only if it can still be shown to
/// have a record of this key locked.
pub(crate) fn owner_without_file(path: &Path, key: &Key, pid: Option<u32>) -> Box<Holder> {
    let mut holder = Holder::unknown(path.to_owned());
    holder.file_gone = true;
    if let Some(pid) = pid
        && let Some(record) = attest::record_of_lost_file(pid, &key.to_string())
    {
        holder.proof = Proof::Verified;
        holder.pid = Some(pid);
        holder.suspended = process::is_suspended(pid);
        holder.command_only = record.command_pid() == Some(pid);
        holder.record = Some(record);
    }
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
    directory: &Directory,
    key: &Key,
    name: &OsStr,
) -> Result<Option<Box<Holder>>, Error> {
    let inspection = inspect_in(directory, key, name)?;
    Ok(match inspection.status.state {
        State::Held(holder) => Some(holder),
        _ => None,
    })
}

pub(crate) fn status(place: &Place, key: &Key) -> Result<Status, Error> {
    inspect(place, key).map(|inspection| inspection.status)
}

pub(crate) fn inspect(place: &Place, key: &Key) -> Result<Inspection, Error> {
    let mut best: Option<Inspection> = None;
    for directory in place.existing(Some(key))? {
        let found = inspect_in(&directory, key, &key.file_name())?;
        if found.status.holder().is_some() {
            return Ok(found);
        }
        let better = match &best {
            None => true,
            Some(best) => matches!(best.status.state, State::Free),
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
        Seen::Owner(pid) => State::Held(owner_without_file(&path, key, pid)),
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
    for directory in place.existing(None)? {
        for name in directory.names()? {
            let Some(key) = name.to_str().and_then(Key::from_file_name) else {
                continue;
            };
            let status = inspect_in(&directory, &key, &name)?.status;
            // Released between listing and looking.
            if !matches!(status.state, State::Free) {
                found.push(status);
            }
        }
    }
    Ok(found)
}

fn inspect_in(directory: &Directory, key: &Key, name: &OsStr) -> Result<Inspection, Error> {
    let path = directory.path().join(name);
    let found = |state: State, file: Option<LockFile>, path: PathBuf| Inspection {
        status: Status {
            key: key.clone(),
            path,
            state,
        },
        file,
    };
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
            Word::Free => {
                // Nobody has the lock of this file; the owner may have lost another one.
                let state = match guard::look(directory, name) {
                    Seen::Owner(pid) => State::Held(owner_without_file(&path, key, pid)),
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
    match look {
        Look::Closed { id, user } => match attest::peek_closed(id) {
            Word::Free => State::OtherUser(user),
            // Not even the pid: without the record nothing says that it is still the taker's.
            Word::Held { .. } => {
                let mut holder = Holder::unknown(path.to_owned());
                holder.proof = Proof::OtherUser;
                holder.record = Some(Record {
                    user: Some(user),
                    ..Record::default()
                });
                State::Held(Box::new(holder))
            }
        },
        Look::Missing | Look::Unusable(_) | Look::File(_) => {
            match (guard::look(directory, name), look) {
                (Seen::Owner(pid), _) => State::Held(owner_without_file(path, key, pid)),
                (Seen::Nobody, Look::Unusable(why)) => State::Unusable(why),
                (Seen::Nobody, _) => State::Free,
            }
        }
    }
}

fn nobody_holds(file: &LockFile, path: &Path) -> Result<State, Error> {
    let bytes = file
        .read(MAX_BYTES)
        .map_err(|error| Error::io("read", path, error))?;
    Ok(match Record::decode(&bytes) {
        Ok(record) if record.released_at.is_some() => State::Free,
        Ok(record) => State::Stale(Box::new(record)),
        Err(why) => State::Unreadable(why.to_string()),
    })
}
