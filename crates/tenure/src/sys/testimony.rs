//! What a system can say about a lock; the same words for all of them.

use super::file::LockFile;

/// Whether a lock is held, and by the kernel's word, by whom.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Word {
    Free,
    /// `taker` took the lock, and may have died since. `None`: not to be seen from here.
    Held {
        taker: Option<u32>,
    },
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
