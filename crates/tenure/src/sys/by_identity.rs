//! Attesting where the system does not say who has a lock (macOS, Windows): the lock is held, and the
//! process that the record names lives and is the one that wrote it.

use std::io;

use crate::process::Identity;
use crate::record::Record;
use crate::sys::file::{Directory, FileId, LockFile};
use crate::sys::process;
use crate::sys::testimony::{Attested, Owner, Word};

/// Looks whether the lock is held, by taking a shared one for an instant.
pub(crate) fn peek(file: &LockFile) -> io::Result<Word> {
    Ok(if file.probe()? {
        Word::Free
    } else {
        Word::Held { taker: None }
    })
}

/// A file that we may not open cannot be asked about.
pub(crate) fn peek_closed(_directory: &Directory, _id: FileId) -> Word {
    Word::Unknown("this system does not show the locks of files that may not be opened")
}

pub(crate) fn taker(_file: &LockFile) -> Option<u32> {
    None
}

pub(crate) fn attest(_file: &LockFile, _taker: Option<u32>, record: &Record) -> Attested {
    if record.host.is_some() && record.host != process::host() {
        return Attested::NotVisible;
    }
    let owner = record
        .process
        .as_ref()
        .map(|identity| (record.pid, identity, false));
    let command = record.command.as_ref().and_then(|command| {
        let identity = command.process.as_ref()?;
        Some((command.pid, identity, true))
    });
    for (pid, identity, command_only) in owner.into_iter().chain(command) {
        if Identity::of(pid).as_ref() == Some(identity) {
            return Attested::Owner(Owner {
                pid,
                suspended: process::is_suspended(pid),
                command_only,
            });
        }
    }
    Attested::Unproven
}

pub(crate) fn record_of_lost_file(_pid: u32, _key: &str) -> Option<Record> {
    None
}
