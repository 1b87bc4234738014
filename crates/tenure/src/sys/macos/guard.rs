//! No deletion guard on macOS: an owner whose lock file was deleted can tell (`Tenure::lost`), and
//! who waits must look again and again.

use std::ffi::OsStr;
use std::io;
use std::os::fd::BorrowedFd;
use std::path::Path;

pub(crate) use super::super::polling::Waiter;
use super::super::testimony::GuardOwner;
use super::super::unix::file::Directory;

#[derive(Debug, Default)]
pub(crate) struct Guard;

#[derive(Debug)]
pub(crate) enum Take {
    Taken(Guard),
    #[expect(dead_code, reason = "only Linux can tell")]
    Held(GuardOwner),
}

impl Guard {
    pub(crate) fn take(_directory: &Directory, _name: &OsStr) -> io::Result<Take> {
        Ok(Take::Taken(Self))
    }

    /// Nothing keeps others out.
    pub(crate) fn is_complete(&self) -> bool {
        false
    }

    pub(crate) fn allow_removal(&mut self) {}

    pub(crate) fn release(&mut self) {}

    pub(crate) fn inheritable(&self) -> Option<BorrowedFd<'_>> {
        None
    }
}

/// Nobody can be seen to own a key without its file.
pub(crate) fn look(_directory: &Directory, _name: &OsStr) -> Seen {
    Seen::Nobody
}

/// Whether an owner was seen through its guard.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Seen {
    Nobody,
    #[expect(dead_code, reason = "only Linux can tell")]
    Owner(GuardOwner),
}

pub(crate) fn look_without_directory(_dir: &Path, _name: &OsStr) -> Seen {
    Seen::Nobody
}
