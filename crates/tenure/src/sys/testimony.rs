//! What a system can say about a lock; the same words for all of them.

use super::file::{FileId, LockFile};

/// Whether a lock is held, and by the kernel's word, by whom.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Word {
    Free,
    /// `taker` took the lock, and may have died since. `None`: not to be seen from here.
    Held {
        taker: Option<u32>,
    },
    /// The system does not show it to us, for this reason.
    Unknown(&'static str),
}

/// A living owner that was seen through its deletion guard.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct GuardOwner {
    /// Its process, if proven.
    pub(crate) pid: Option<u32>,
    /// Its user, by the kernel's word.
    pub(crate) uid: Option<u32>,
}

/// Kind of object at the path of a lock file.
#[derive(Debug)]
pub(crate) enum Opened {
    File(LockFile),
    #[cfg_attr(
        windows,
        expect(dead_code, reason = "files have no owner of this kind there")
    )]
    Foreign(Foreign),
}

/// Another user's file, which is not ours to own a key with.
#[derive(Debug)]
pub(crate) struct Foreign {
    pub(crate) id: FileId,
    pub(crate) uid: u32,
    pub(crate) user: String,
    /// The file itself, if we may at least read it.
    pub(crate) file: Option<LockFile>,
}

/// A process that is proven to have a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Owner {
    pub(crate) pid: u32,
    pub(crate) suspended: bool,
    /// It is the command that inherited the lock; the process that took it is gone.
    pub(crate) command_only: bool,
}

/// How a record stands against the system's word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Attested {
    Owner(Owner),
    NotVisible,
    Unproven,
}

/// By what a process is to be recognized as an owner.
#[cfg_attr(
    not(target_os = "linux"),
    expect(dead_code, reason = "only Linux shows the locks of a process")
)]
pub(crate) enum Evidence<'a> {
    /// It has the lock on this file.
    File(&'a LockFile),
    /// It has a lock on a file that is no longer at its path, and whose record names this key.
    LostFile { key: &'a str },
}
