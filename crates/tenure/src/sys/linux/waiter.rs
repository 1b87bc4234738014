//! Waiting for the release of a key without polling, on Linux.

use std::ffi::OsStr;
use std::io;
use std::os::fd::OwnedFd;
use std::thread;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::Errno;
use rustix::net::SocketFlags;
use rustix::net::sockopt::{self, Timeout};

use super::super::unix::file::Directory;
use super::deletion_guard::{can_own, stream};
use super::{socket_name, socket_owner};

/// Maximum sleep of a process that waits for a key. It then tries to acquire the key again, in case
/// no wake-up arrived.
const LONGEST_SLEEP: Duration = Duration::from_millis(250);

/// Waiting for the owner of a key to release it, without polling: the kernel wakes the process when
/// the owner's socket closes.
#[derive(Debug, Default)]
pub(crate) struct Waiter {
    /// Connection to the owner's deletion guard. It is kept between calls, so that a waiter takes
    /// up one entry of the connection queue.
    connection: Option<OwnedFd>,
}

impl Waiter {
    /// Sleeps until the owner releases the key, at most `limit`. Sleeps for `pause` if there is no
    /// deletion guard to wait on.
    pub(crate) fn wait(
        &mut self,
        directory: &Directory,
        name: &OsStr,
        limit: Duration,
        pause: Duration,
    ) {
        let limit = limit.min(LONGEST_SLEEP);
        if !matches!(self.wait_for_close(directory, name, limit), Ok(true)) {
            thread::sleep(pause.min(limit));
        }
    }

    /// Waits until the socket of the owner's deletion guard is closed. Returns false if there is no
    /// such socket, so the caller must poll.
    fn wait_for_close(
        &mut self,
        directory: &Directory,
        name: &OsStr,
        limit: Duration,
    ) -> io::Result<bool> {
        let until = Instant::now() + limit;
        if self.connection.is_none() {
            let socket = stream(SocketFlags::CLOEXEC)?;
            // If the connection queue is full, `connect` itself waits until there is room or the
            // owner exits. The send timeout limits that wait.
            let at_least = limit.max(Duration::from_millis(1));
            sockopt::set_socket_timeout(&socket, Timeout::Send, Some(at_least))?;
            match rustix::net::connect(&socket, &socket_name::by_inode(directory, name)?) {
                Ok(()) => {}
                Err(Errno::AGAIN | Errno::INTR) => return Ok(true),
                Err(Errno::CONNREFUSED) => return Ok(false),
                Err(errno) => return Err(errno.into()),
            }
            let (_, uid) = socket_owner::peer_credentials(&socket)?;
            if !can_own(uid, directory.writers()) {
                return Ok(false);
            }
            self.connection = Some(socket);
        }
        let Some(connection) = &self.connection else {
            return Ok(false);
        };
        let mut watched = [PollFd::new(connection, PollFlags::empty())];
        let left = until.saturating_duration_since(Instant::now());
        let timeout = Timespec::try_from(left).unwrap_or(Timespec {
            tv_sec: 0,
            tv_nsec: 0,
        });
        match rustix::event::poll(&mut watched, Some(&timeout)) {
            Ok(0) | Err(Errno::INTR) => {}
            Ok(_) => self.connection = None,
            Err(errno) => return Err(errno.into()),
        }
        Ok(true)
    }
}
