//! The deletion guard on Windows: a handle that does not let others delete or rename the file.

use std::ffi::OsStr;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::windows::fs::OpenOptionsExt;
use std::path::Path;
use std::thread;
use std::time::Duration;

use windows_sys::Win32::Foundation::GENERIC_READ;
use windows_sys::Win32::Storage::FileSystem::{
    FILE_FLAG_OPEN_REPARSE_POINT, FILE_SHARE_READ, FILE_SHARE_WRITE,
};

pub(crate) use super::super::polling::Waiter;
use super::super::types::{GuardAttempt, GuardOwner};
use super::file::Directory;

/// Maximum number of attempts to open the lock file for the deletion guard. An attempt fails while
/// another process has the file open for deletion.
const TRIES: usize = 20;
/// Pause between two attempts to open the lock file.
const PAUSE: Duration = Duration::from_millis(1);

#[derive(Debug, Default)]
pub(crate) struct DeletionGuard(Option<File>);

impl DeletionGuard {
    pub(crate) fn try_acquire(directory: &Directory, name: &OsStr) -> io::Result<GuardAttempt> {
        let path = directory.path().join(name);
        for _ in 0..TRIES {
            let pinned = OpenOptions::new()
                .access_mode(GENERIC_READ)
                .share_mode(FILE_SHARE_READ | FILE_SHARE_WRITE)
                .custom_flags(FILE_FLAG_OPEN_REPARSE_POINT)
                .open(&path);
            match pinned {
                Ok(file) => return Ok(GuardAttempt::Acquired(Self(Some(file)))),
                // The lock file no longer exists, so there is no file to guard. The caller checks
                // the path next and retries.
                Err(error) if error.kind() == io::ErrorKind::NotFound => break,
                Err(_) => thread::sleep(PAUSE),
            }
        }
        Ok(GuardAttempt::Acquired(Self(None)))
    }

    pub(crate) fn is_exclusive(&self) -> bool {
        self.0.is_some()
    }

    /// Closes the guard's handle of the lock file. While the handle is open, Windows refuses to
    /// delete the file, so the owner could not remove its own lock file on release.
    pub(crate) fn allow_removal(&mut self) {
        self.0 = None;
    }

    pub(crate) fn release(&mut self) {
        self.0 = None;
    }
}

/// Always `None`: Windows does not delete a file that is held, so every owner has its lock file.
pub(crate) fn owner(_directory: &Directory, _name: &OsStr) -> Option<GuardOwner> {
    None
}

pub(crate) fn owner_without_directory(_dir: &Path, _name: &OsStr) -> Option<GuardOwner> {
    None
}
