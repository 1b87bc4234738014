//! Attestation where the system does not report which process has a lock (macOS, Windows). The lock
//! must be held, and the process that the lock record names must be running with the recorded start
//! time.

use std::io;

use crate::process::Identity;
use crate::record::Record;
use crate::sys::file::{Directory, FileId, LockFile};
use crate::sys::process;
use crate::sys::types::{Attested, LockState, ProvenOwner};

/// Returns the state of the lock. Holds a shared lock for an instant to find out.
pub(crate) fn lock_state(file: &LockFile) -> io::Result<LockState> {
    file.probe()
}

/// Always unknown: these systems report locks only through an open file.
pub(crate) fn lock_state_without_access(_directory: &Directory, _id: FileId) -> LockState {
    LockState::Unknown("this system does not show the locks of files that cannot be opened")
}

pub(crate) fn acquirer(_file: &LockFile) -> Option<u32> {
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
        if Identity::from_pid(pid).as_ref() == Some(identity) {
            return Attested::Owner(ProvenOwner {
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
