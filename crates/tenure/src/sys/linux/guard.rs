//! The second guard: an abstract socket that only one process can have bound.
//!
//! A lock file can be deleted, renamed or replaced while it is held, and a newcomer would lock the
//! new file. The socket's name is made of the user, the directory and the file's *name*, so the
//! newcomer finds it taken. It dies with its owner, like the lock. It also lets others wait: who
//! is connected to it hears at once when it goes away.
//!
//! Abstract sockets belong to a network namespace: between containers that share a directory but
//! no network, the lock file alone decides.

use std::ffi::OsStr;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::thread;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::Errno;
use rustix::net::sockopt::{self, Timeout};
use rustix::net::{AddressFamily, Shutdown, SocketAddrUnix, SocketFlags, SocketType};
use rustix::process::geteuid;

use super::super::unix::file::{Directory, LockFile, above_standard};
use super::{attest, proc};

/// What fits into an abstract address beside its leading zero byte.
const LONGEST_NAME: usize = 107;
/// How many may wait in line; the kernel makes more of them wait before the door.
const BACKLOG: i32 = 1024;
/// The owner may be between `bind` and `listen`, or letting go.
const UNDECIDED_TRIES: u32 = 20;
const UNDECIDED_PAUSE: Duration = Duration::from_micros(500);
/// A waiter looks for itself at least this often, whatever it hears.
const LONGEST_SLEEP: Duration = Duration::from_millis(250);

/// Held by the owner; empty when the guard could not be had.
#[derive(Debug, Default)]
pub(crate) struct Guard(Option<OwnedFd>);

/// The outcome of taking the guard.
#[derive(Debug)]
pub(crate) enum Take {
    Taken(Guard),
    /// A live owner has it. Its id, if proven.
    Held(Option<u32>),
}

impl Guard {
    /// Takes the guard of a file whose lock is held.
    pub(crate) fn take(directory: &Directory, _file: &LockFile, name: &OsStr) -> io::Result<Take> {
        let path = directory.path().join(name);
        let address = address(directory, name)?;
        for _ in 0..UNDECIDED_TRIES {
            let socket = match stream(SocketFlags::CLOEXEC) {
                Err(error) if is_forbidden(&error) => {
                    tracing::warn!(%error, path = %path.display(), "no second guard can be had here");
                    return Ok(Take::Taken(Self(None)));
                }
                socket => socket?,
            };
            match rustix::net::bind(&socket, &address) {
                Ok(()) => {
                    rustix::net::listen(&socket, BACKLOG)?;
                    return Ok(Take::Taken(Self(Some(socket))));
                }
                Err(Errno::ADDRINUSE) => {}
                Err(errno) => return Err(errno.into()),
            }
            match peer(&address)? {
                Peer::Owner(pid) => return Ok(Take::Held(pid)),
                Peer::Stranger => {
                    tracing::warn!(
                        path = %path.display(),
                        "another user has bound the name of the second guard; going on without it"
                    );
                    return Ok(Take::Taken(Self(None)));
                }
                Peer::Silent => thread::sleep(UNDECIDED_PAUSE),
            }
        }
        // Bound but not listening: an owner let go of it while a descendant still has the
        // descriptor, or one is about to listen. The latter checks its file after listening, and
        // will find that the file is no longer there.
        tracing::warn!(
            path = %path.display(),
            "the name of the second guard is still bound, by a descendant of the last owner or by \
             another user; going on without it"
        );
        Ok(Take::Taken(Self(None)))
    }

    /// Nothing here keeps the file from being removed.
    pub(crate) fn allow_removal(&mut self) {
        let _ = &self.0;
    }

    /// Lets go, also of copies that a descendant inherited.
    pub(crate) fn release(&mut self) {
        if let Some(socket) = self.0.take() {
            let _ = rustix::net::shutdown(&socket, Shutdown::Both);
        }
    }

    pub(crate) fn as_fd(&self) -> Option<BorrowedFd<'_>> {
        self.0.as_ref().map(AsFd::as_fd)
    }
}

/// Whether an owner was seen through its guard.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Seen {
    Nobody,
    /// Its id, if proven.
    Owner(Option<u32>),
}

/// Whether a live owner has the guard, though no file says so.
pub(crate) fn look(directory: &Directory, name: &OsStr) -> Seen {
    match address(directory, name).and_then(|address| peer(&address)) {
        Ok(Peer::Owner(pid)) => Seen::Owner(pid),
        Ok(Peer::Stranger | Peer::Silent) | Err(_) => Seen::Nobody,
    }
}

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
            match rustix::net::connect(&socket, &address(directory, name)?) {
                Ok(()) => {}
                Err(Errno::AGAIN | Errno::INTR) => return Ok(true),
                Err(Errno::CONNREFUSED) => return Ok(false),
                Err(errno) => return Err(errno.into()),
            }
            if !is_one_of_us(sockopt::socket_peercred(&socket)?.uid.as_raw()) {
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

/// Who has a guard's name bound.
enum Peer {
    Owner(Option<u32>),
    /// Not a process of this user or of the administrator.
    Stranger,
    /// Nobody, or nobody who listens.
    Silent,
}

fn peer(address: &SocketAddrUnix) -> io::Result<Peer> {
    let socket = stream(SocketFlags::CLOEXEC | SocketFlags::NONBLOCK)?;
    match rustix::net::connect(&socket, address) {
        Ok(()) => {}
        // The line is full, so somebody listens. Who, the kernel tells only those in the line.
        Err(Errno::AGAIN) => {
            let who = inode_of(address).and_then(attest::who_of_us_shows_socket);
            return Ok(who.map_or(Peer::Stranger, |pid| Peer::Owner(Some(pid))));
        }
        Err(Errno::CONNREFUSED) => return Ok(Peer::Silent),
        Err(errno) => return Err(errno.into()),
    }
    let credentials = sockopt::socket_peercred(&socket)?;
    let uid = credentials.uid.as_raw();
    if !is_one_of_us(uid) {
        return Ok(Peer::Stranger);
    }
    // The kernel names the process that called `listen`; that one may have died and left the
    // socket to a child, and its number may belong to a stranger now.
    let pid = u32::try_from(credentials.pid.as_raw_nonzero().get()).ok();
    let inode = inode_of(address);
    Ok(Peer::Owner(pid.filter(|pid| {
        inode.is_some_and(|inode| attest::shows_socket(*pid, inode))
    })))
}

fn is_one_of_us(uid: u32) -> bool {
    uid == 0 || uid == geteuid().as_raw()
}

/// The listening socket's inode. `/proc/net/unix`: `Num RefCount Protocol Flags Type St Inode Path`.
fn inode_of(address: &SocketAddrUnix) -> Option<u64> {
    const LISTENS: u64 = 0x10000;
    let name = address.abstract_name()?;
    let table = proc::table("/proc/net/unix")?;
    table.split(|byte| *byte == b'\n').find_map(|line| {
        let path = line.strip_suffix(name)?.strip_suffix(b" @")?;
        let mut words = std::str::from_utf8(path).ok()?.split_ascii_whitespace();
        let flags = u64::from_str_radix(words.nth(3)?, 16).ok()?;
        let inode = words.nth(2)?.parse().ok()?;
        (flags & LISTENS != 0).then_some(inode)
    })
}

/// Sandboxes may allow files but no sockets.
fn is_forbidden(error: &io::Error) -> bool {
    let errno = Errno::from_io_error(error);
    matches!(
        errno,
        Some(Errno::AFNOSUPPORT | Errno::PERM | Errno::ACCESS | Errno::NOSYS)
    )
}

fn stream(flags: SocketFlags) -> io::Result<OwnedFd> {
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    Ok(above_standard(socket)?)
}

fn address(directory: &Directory, name: &OsStr) -> io::Result<SocketAddrUnix> {
    let id = directory.id();
    let prefix = format!("tenure/{}/{:x}:{:x}/", geteuid().as_raw(), id.dev, id.ino);
    Ok(SocketAddrUnix::new_abstract_name(&socket_name(
        &prefix,
        name.as_encoded_bytes(),
    ))?)
}

/// A name that is too long is cut, with a hash of the whole to tell it from its like. Bytes that
/// would break the lines of `/proc/net/unix` are hashed too.
fn socket_name(prefix: &str, name: &[u8]) -> Vec<u8> {
    let mut full = prefix.as_bytes().to_vec();
    if full.len() + name.len() <= LONGEST_NAME && name.iter().all(u8::is_ascii_graphic) {
        full.extend_from_slice(name);
    } else {
        // 128-bit FNV-1a.
        let hash = name.iter().fold(
            0x6c62_272e_07bb_0142_62b8_2175_6295_c58d_u128,
            |hash, byte| {
                (hash ^ u128::from(*byte)).wrapping_mul(0x0000_0000_0100_0000_0000_0000_0000_013b)
            },
        );
        full.extend_from_slice(format!("#{hash:032x}").as_bytes());
    }
    full
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_file_name_gets_an_address_of_its_own() {
        let prefix = "tenure/4294967295/ffffffffffffffff:ffffffffffffffff/";
        let long = "x".repeat(255);
        let longer = format!("{}y", "x".repeat(254));
        let names: Vec<_> = ["a.lock", "b.lock", "a b", "a\nb", &long, &longer]
            .iter()
            .map(|name| socket_name(prefix, name.as_bytes()))
            .collect();
        for (i, name) in names.iter().enumerate() {
            assert!(name.len() <= LONGEST_NAME, "{}", name.len());
            assert!(!names[i + 1..].contains(name));
        }
    }
}
