//! Passing the lock to a command, which inherits a copy of the descriptor.

use std::io;
use std::process::{Child, Command};

use rustix::io::FdFlags;

use super::super::deletion_guard::DeletionGuard;
use super::file::LockFile;

/// Handle that must exist while the command runs. Empty on Unix, where the command has the lock
/// itself.
#[derive(Debug)]
pub(crate) struct CommandJob;

impl CommandJob {
    pub(crate) fn release(self) {}
}

/// Starts a command that inherits the lock and one socket of the deletion guard.
pub(crate) fn spawn(
    command: &mut Command,
    file: &LockFile,
    guard: &DeletionGuard,
) -> io::Result<(Child, CommandJob)> {
    // The descriptors are inheritable only during the spawn. A program that another thread starts
    // at the same time inherits them too; Unix offers no way to prevent that.
    let inheritable = |flags| {
        rustix::io::fcntl_setfd(file.as_fd(), flags)?;
        guard
            .inheritable()
            .map_or(Ok(()), |fd| rustix::io::fcntl_setfd(fd, flags))
    };
    inheritable(FdFlags::empty())?;
    let child = command.spawn();
    inheritable(FdFlags::CLOEXEC)?;
    Ok((child?, CommandJob))
}
