//! The second guard: abstract sockets whose names only one process can have bound.
//!
//! A lock file can be deleted, renamed or replaced while it is held, and a newcomer would lock the
//! new file; but it finds the names taken. They die with their owner, like the lock. They also let
//! others wait: who is connected to one hears at once when it goes away.
//!
//! Abstract sockets belong to a network namespace: between containers that share a directory but
//! no network, the lock file alone decides.

use std::ffi::OsStr;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::thread;
use std::time::Duration;

use rustix::io::Errno;
use rustix::net::sockopt;
use rustix::net::{AddressFamily, Shutdown, SocketAddrUnix, SocketFlags, SocketType};
use rustix::process::geteuid;

use super::super::unix::file::{Directory, LockFile, above_standard};
pub(crate) use super::waiter::Waiter;
use super::{attest, guard_name, proc};

/// How many may wait in line; the kernel makes more of them wait before the door.
const BACKLOG: i32 = 1024;
/// The owner may be between `bind` and `listen`, or letting go.
const UNDECIDED_TRIES: u32 = 8;
const UNDECIDED_PAUSE: Duration = Duration::from_micros(500);

/// Held by the owner: the names that could be had.
#[derive(Debug, Default)]
pub(crate) struct Guard {
    by_inode: Option<OwnedFd>,
    by_place: Option<OwnedFd>,
}

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
        let mut guard = Self::default();
        match bind(&guard_name::by_inode(directory, name)?)? {
            Bound::Ours(socket) => guard.by_inode = Some(socket),
            Bound::Nobodys => {}
            Bound::Owners(pid) => return Ok(Take::Held(pid)),
        }
        if let Some(address) = guard_name::by_place(directory, name)? {
            match bind(&address)? {
                Bound::Ours(socket) => guard.by_place = Some(socket),
                Bound::Nobodys => {}
                Bound::Owners(pid) => {
                    guard.release();
                    return Ok(Take::Held(pid));
                }
            }
        }
        if guard.by_inode.is_none() && guard.by_place.is_none() {
            tracing::warn!(
                path = %directory.path().join(name).display(),
                "no second guard can be had: another user has bound its names, or sockets are \
                 forbidden here; going on without it"
            );
        }
        Ok(Take::Taken(guard))
    }

    /// Nothing here keeps the file from being removed.
    pub(crate) fn allow_removal(&mut self) {}

    /// Lets go, also of copies that a child has. Last of the name on which others wait.
    pub(crate) fn release(&mut self) {
        for socket in [self.by_place.take(), self.by_inode.take()]
            .into_iter()
            .flatten()
        {
            let _ = rustix::net::shutdown(&socket, Shutdown::Both);
        }
    }

    /// What a command under the tenure gets a copy of. Only one: if the command leaves a daemon
    /// behind, that one stays bound for good, and the next owner must do with the other.
    pub(crate) fn inheritable(&self) -> Option<BorrowedFd<'_>> {
        self.by_place.as_ref().map(AsFd::as_fd)
    }
}

enum Bound {
    Ours(OwnedFd),
    /// Not ours, and no owner's either.
    Nobodys,
    Owners(Option<u32>),
}

fn bind(address: &SocketAddrUnix) -> io::Result<Bound> {
    for _ in 0..UNDECIDED_TRIES {
        let socket = match stream(SocketFlags::CLOEXEC) {
            Err(error) if is_forbidden(&error) => return Ok(Bound::Nobodys),
            socket => socket?,
        };
        match rustix::net::bind(&socket, address) {
            Ok(()) => {
                rustix::net::listen(&socket, BACKLOG)?;
                return Ok(Bound::Ours(socket));
            }
            Err(Errno::ADDRINUSE) => {}
            Err(errno) => return Err(errno.into()),
        }
        match peer(address)? {
            Peer::Owner(pid) => return Ok(Bound::Owners(pid)),
            Peer::Stranger => return Ok(Bound::Nobodys),
            Peer::Silent => thread::sleep(UNDECIDED_PAUSE),
        }
    }
    // Bound but not listening: an owner let go of it while a child still has a copy, or one is
    // about to listen. The latter looks for its file after listening, and will not find it.
    Ok(Bound::Nobodys)
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
    let by_inode = guard_name::by_inode(directory, name).ok();
    let by_place = guard_name::by_place(directory, name).ok().flatten();
    seen(by_inode.iter().chain(&by_place))
}

/// The same when not even the directory is there.
pub(crate) fn look_without_directory(dir: &Path, name: &OsStr) -> Seen {
    let by_place = guard_name::by_place_of_missing(dir, name).ok().flatten();
    seen(by_place.iter())
}

fn seen<'a>(mut addresses: impl Iterator<Item = &'a SocketAddrUnix>) -> Seen {
    let owner = addresses.find_map(|address| match peer(address) {
        Ok(Peer::Owner(pid)) => Some(pid),
        Ok(Peer::Stranger | Peer::Silent) | Err(_) => None,
    });
    owner.map_or(Seen::Nobody, Seen::Owner)
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
    // socket to its command, and its number may belong to a stranger now.
    let pid = u32::try_from(credentials.pid.as_raw_nonzero().get()).ok();
    let inode = inode_of(address);
    Ok(Peer::Owner(inode.and_then(|inode| {
        pid.filter(|pid| attest::shows_socket(*pid, inode))
            .or_else(|| attest::who_of_us_shows_socket(inode))
    })))
}

pub(super) fn is_one_of_us(uid: u32) -> bool {
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

pub(super) fn stream(flags: SocketFlags) -> io::Result<OwnedFd> {
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    Ok(above_standard(socket)?)
}
