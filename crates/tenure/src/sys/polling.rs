//! Waiting for a release by polling (macOS, Windows), where the kernel cannot wake a waiting
//! process.

use std::ffi::OsStr;
use std::thread;
use std::time::Duration;

use crate::sys::file::Directory;

#[derive(Debug, Default)]
pub(crate) struct Waiter;

impl Waiter {
    pub(crate) fn wait(
        &mut self,
        _directory: &Directory,
        _name: &OsStr,
        limit: Duration,
        pause: Duration,
    ) {
        thread::sleep(pause.min(limit));
    }
}
