//! Types that the implementations for all operating systems share.

use std::io;

use super::deletion_guard::DeletionGuard;
use super::file::{FileId, LockFile};

/// State of a lock, as the kernel reports it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LockState {
    Free,
    /// The lock is held. The process `acquirer` acquired it and may have exited since. `None`: that
    /// process is not visible to this one.
    Held {
        acquirer: Option<u32>,
    },
    /// The system does not show the lock to this process, for this reason.
    Unknown(&'static str),
}

/// A living owner that was found through its deletion guard.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct GuardOwner {
    /// Process id of the owner, if it is proven.
    pub(crate) pid: Option<u32>,
    /// User of the owner, as the kernel reports it.
    pub(crate) uid: Option<u32>,
}

impl LockFile {
    /// Returns the state of the lock. Holds a shared lock for an instant to find out, so a process
    /// that tries to acquire the key in that instant must retry.
    pub(crate) fn probe(&self) -> io::Result<LockState> {
        if !self.try_lock_shared()? {
            return Ok(LockState::Held { acquirer: None });
        }
        self.unlock()?;
        Ok(LockState::Free)
    }
}

/// Outcome of an attempt to acquire the deletion guard.
#[derive(Debug)]
pub(crate) enum GuardAttempt {
    Acquired(DeletionGuard),
    /// A living owner has the deletion guard, so the key is held even if its lock file is free.
    #[cfg_attr(
        not(target_os = "linux"),
        expect(
            dead_code,
            reason = "only Linux can identify the owner of a deletion guard"
        )
    )]
    Held(GuardOwner),
}

/// Kind of object at the path of a lock file: only some kinds can be used as a lock file.
#[derive(Debug)]
pub(crate) enum Opened {
    File(LockFile),
    #[cfg_attr(
        windows,
        expect(dead_code, reason = "tenure does not distinguish users on Windows")
    )]
    Foreign(ForeignFile),
}

/// Another user's file, which this user cannot use as a lock file.
#[derive(Debug)]
pub(crate) struct ForeignFile {
    pub(crate) id: FileId,
    pub(crate) uid: u32,
    pub(crate) user: String,
    /// The open file, if this user may read it.
    pub(crate) file: Option<LockFile>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ProvenOwner {
    pub(crate) pid: u32,
    pub(crate) suspended: bool,
    /// True if the process is the command that inherited the lock, and the process that acquired it
    /// has exited.
    pub(crate) command_only: bool,
}

/// Result of checking a lock record against what the system reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Attested {
    Owner(ProvenOwner),
    NotVisible,
    Unproven,
}

/// Reason for not signalling a process whose start time is missing from the lock record. Without
/// the start time, another process that has been given the same pid cannot be recognized.
#[cfg(not(target_os = "linux"))]
pub(crate) fn unidentified(pid: u32) -> String {
    format!("the lock record does not identify the process that had pid {pid}")
}

/// Proof of ownership that a process must show before it is signalled.
#[cfg_attr(
    not(target_os = "linux"),
    expect(dead_code, reason = "only Linux shows the locks of a process")
)]
pub(crate) enum Evidence<'a> {
    /// The process has the lock on this file.
    File(&'a LockFile),
    /// The process has a lock on a file that is no longer at its path and whose record names this
    /// key.
    LostFile { key: &'a str },
}
