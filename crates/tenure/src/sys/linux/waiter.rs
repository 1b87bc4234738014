//! Waiting for an owner without asking again and again.

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
use super::guard::{can_own, stream};
use super::{guard_name, socket_owner};

/// A waiter looks for itself at least this often, whatever it hears.
const LONGEST_SLEEP: Duration = Duration::from_millis(250);

/// Waits for an owner to let go.
#[derive(Debug, Default)]
pub(crate) struct Waiter {
    /// Connected to the owner's guard. Kept, so that a waiter stands in the line only once.
    line: Option<OwnedFd>,
}

impl Waiter {
    /// Sleeps until the owner lets go, at most `limit`; `pause` if that cannot be heard.
    pub(crate) fn wait(
        &mut self,
        directory: &Directory,
        name: &OsStr,
        limit: Duration,
        pause: Duration,
    ) {
        let limit = limit.min(LONGEST_SLEEP);
        if !matches!(self.hear_release(directory, name, limit), Ok(true)) {
            thread::sleep(pause.min(limit));
        }
    }

    /// `false`: there is nobody to listen to.
    fn hear_release(
        &mut self,
        directory: &Directory,
        name: &OsStr,
        limit: Duration,
    ) -> io::Result<bool> {
        let until = Instant::now() + limit;
        if self.line.is_none() {
            let socket = stream(SocketFlags::CLOEXEC)?;
            // With the line full, connecting itself waits: until there is room, or the owner is
            // gone.
            let at_least = limit.max(Duration::from_millis(1));
            sockopt::set_socket_timeout(&socket, Timeout::Send, Some(at_least))?;
            match rustix::net::connect(&socket, &guard_name::by_inode(directory, name)?) {
                Ok(()) => {}
                Err(Errno::AGAIN | Errno::INTR) => return Ok(true),
                Err(Errno::CONNREFUSED) => return Ok(false),
                Err(errno) => return Err(errno.into()),
            }
            let (_, uid) = socket_owner::peer(&socket)?;
            if !can_own(uid, directory.writers()) {
                return Ok(false);
            }
            self.line = Some(socket);
        }
        let Some(line) = &self.line else {
            return Ok(false);
        };
        let mut watched = [PollFd::new(line, PollFlags::empty())];
        let left = until.saturating_duration_since(Instant::now());
        let timeout = Timespec::try_from(left).unwrap_or(Timespec {
            tv_sec: 0,
            tv_nsec: 0,
        });
        match rustix::event::poll(&mut watched, Some(&timeout)) {
            Ok(0) | Err(Errno::INTR) => {}
            Ok(_) => self.line = None,
            Err(errno) => return Err(errno.into()),
        }
        Ok(true)
    }
}
