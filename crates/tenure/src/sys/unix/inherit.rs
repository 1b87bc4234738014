//! Handing the lock to a command: it gets copies of the descriptors, and with them the lock.

use std::io;
use std::os::fd::BorrowedFd;
use std::process::{Child, Command};

use rustix::io::FdFlags;

use super::super::guard::Guard;
use super::file::LockFile;

/// What must live as long as the command runs. Nothing on Unix: the command has the lock itself.
#[derive(Debug)]
pub(crate) struct Bond;

impl Bond {
    pub(crate) fn release(self) {}
}

/// Starts a command that inherits the lock and the second guard.
pub(crate) fn spawn(
    command: &mut Command,
    file: &LockFile,
    guard: &Guard,
) -> io::Result<(Child, Bond)> {
    // Cleared for the moment of the spawn only. Another thread that starts a program in this very
    // moment hands the descriptors to that one too, as with any other way to pass a descriptor on.
    let shared: Vec<BorrowedFd<'_>> = std::iter::once(file.as_fd()).chain(guard.as_fd()).collect();
    for fd in &shared {
        rustix::io::fcntl_setfd(fd, FdFlags::empty())?;
    }
    let child = command.spawn();
    for fd in &shared {
        rustix::io::fcntl_setfd(fd, FdFlags::CLOEXEC)?;
    }
    Ok((child?, Bond))
}
