//! macOS has no deletion guard. An owner whose lock file was deleted can find out (`Tenure::lost`),
//! and waiting processes must poll.

use std::ffi::OsStr;
use std::io;
use std::os::fd::BorrowedFd;
use std::path::Path;

pub(crate) use super::super::polling::Waiter;
use super::super::types::{GuardAttempt, GuardOwner};
use super::super::unix::file::Directory;

#[derive(Debug, Default)]
pub(crate) struct DeletionGuard;

impl DeletionGuard {
    pub(crate) fn try_acquire(_directory: &Directory, _name: &OsStr) -> io::Result<GuardAttempt> {
        Ok(GuardAttempt::Acquired(Self))
    }

    /// Always false: nothing excludes other processes if the lock file is deleted.
    pub(crate) fn is_exclusive(&self) -> bool {
        false
    }

    pub(crate) fn allow_removal(&mut self) {}

    pub(crate) fn release(&mut self) {}

    pub(crate) fn inheritable(&self) -> Option<BorrowedFd<'_>> {
        None
    }
}

/// Always `None`: without a deletion guard, an owner whose lock file is gone cannot be found.
pub(crate) fn owner(_directory: &Directory, _name: &OsStr) -> Option<GuardOwner> {
    None
}

pub(crate) fn owner_without_directory(_dir: &Path, _name: &OsStr) -> Option<GuardOwner> {
    None
}
