//! Handing the lock to a command: it gets a copy of the descriptor, and with it the lock.

use std::io;
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

/// Starts a command that inherits the lock, and what the guard has to give.
pub(crate) fn spawn(
    command: &mut Command,
    file: &LockFile,
    guard: &Guard,
) -> io::Result<(Child, Bond)> {
    // Inheritable for the moment of the spawn only. Another thread that starts a program in this
    // very moment hands the descriptors to that one too, as with any other way to pass one on.
    let inheritable = |flags| {
        rustix::io::fcntl_setfd(file.as_fd(), flags)?;
        guard
            .inheritable()
            .map_or(Ok(()), |fd| rustix::io::fcntl_setfd(fd, flags))
    };
    inheritable(FdFlags::empty())?;
    let child = command.spawn();
    inheritable(FdFlags::CLOEXEC)?;
    Ok((child?, Bond))
}
