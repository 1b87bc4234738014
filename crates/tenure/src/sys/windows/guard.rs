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
use super::super::testimony::GuardOwner;
use super::file::Directory;

/// Somebody may have the file open for deletion: how often to try again.
const TRIES: usize = 20;
const PAUSE: Duration = Duration::from_millis(1);

#[derive(Debug, Default)]
pub(crate) struct Guard(Option<File>);

#[derive(Debug)]
pub(crate) enum Take {
    Taken(Guard),
    #[expect(dead_code, reason = "only Linux can tell")]
    Held(GuardOwner),
}

impl Guard {
    pub(crate) fn take(directory: &Directory, name: &OsStr) -> io::Result<Take> {
        let path = directory.path().join(name);
        for _ in 0..TRIES {
            let pinned = OpenOptions::new()
                .access_mode(GENERIC_READ)
                .share_mode(FILE_SHARE_READ | FILE_SHARE_WRITE)
                .custom_flags(FILE_FLAG_OPEN_REPARSE_POINT)
                .open(&path);
            match pinned {
                Ok(file) => return Ok(Take::Taken(Self(Some(file)))),
                // The file is gone: the check of its place will find that out.
                Err(error) if error.kind() == io::ErrorKind::NotFound => break,
                Err(_) => thread::sleep(PAUSE),
            }
        }
        Ok(Take::Taken(Self(None)))
    }

    pub(crate) fn is_complete(&self) -> bool {
        self.0.is_some()
    }

    /// Lets the file be removed.
    pub(crate) fn allow_removal(&mut self) {
        self.0 = None;
    }

    pub(crate) fn release(&mut self) {
        self.0 = None;
    }
}

/// Whether an owner was seen through its guard.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Seen {
    Nobody,
    #[expect(dead_code, reason = "only Linux can tell")]
    Owner(GuardOwner),
}

/// A held file cannot be deleted here, so no owner is ever without one.
pub(crate) fn look(_directory: &Directory, _name: &OsStr) -> Seen {
    Seen::Nobody
}

pub(crate) fn look_without_directory(_dir: &Path, _name: &OsStr) -> Seen {
    Seen::Nobody
}
