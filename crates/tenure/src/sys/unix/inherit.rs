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

/// Fails: nothing would end the command when the lease is lost.
pub(crate) fn spawn_on_lease(_command: &mut Command) -> io::Result<(Child, CommandJob)> {
    let why = "a command cannot inherit a lease; start it with `tenure run --store`";
    Err(io::Error::new(io::ErrorKind::Unsupported, why))
}
