//! The deletion guard: abstract sockets whose names only one process can have bound.
//!
//! A lock file can be deleted, renamed or replaced while it is held, and a newcomer would lock the
//! new file; but it finds the names taken. They die with their owner, like the lock. They also let
//! others wait: who is connected to one hears at once when it goes away.
//!
//! Abstract sockets belong to a network namespace: between containers that share a directory but
//! no network, the lock file alone decides.
//!
//! Any user may bind any name. A socket counts as an owner's only if its user could own the key: root,
//! our own user, the directory's owner, and everyone where group or others may write the directory
//! (they could take the lock file itself). A socket of any other user is passed over, so that it
//! keeps nobody out; the guard then lacks that name, and a warning is logged if it lacks both.

use std::ffi::OsStr;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::thread;
use std::time::Duration;

use rustix::io::Errno;
use rustix::net::{AddressFamily, Shutdown, SocketAddrUnix, SocketFlags, SocketType};
use rustix::process::geteuid;

use super::super::testimony::GuardOwner;
use super::super::unix::file::{Directory, Writers, above_standard};
pub(crate) use super::waiter::Waiter;
use super::{attest, guard_name, process, socket_owner};

/// How many may wait in line; the kernel makes more of them wait before the door.
const BACKLOG: i32 = 1024;
/// The owner may be between `bind` and `listen`, or letting go.
const UNDECIDED_TRIES: u32 = 8;
const UNDECIDED_PAUSE: Duration = Duration::from_micros(500);
/// The number by which a user namespace shows users that it does not know (`overflowuid`).
const UNKNOWN_USER: u32 = 65534;

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
    /// A live owner has it.
    Held(GuardOwner),
}

impl Guard {
    /// Takes the guard of a file whose lock is held, or that is about to be replaced.
    pub(crate) fn take(directory: &Directory, name: &OsStr) -> io::Result<Take> {
        let mut guard = Self::default();
        let writers = directory.writers();
        match bind(&guard_name::by_inode(directory, name)?, writers)? {
            Bound::Ours(socket) => guard.by_inode = Some(socket),
            Bound::Nobodys => {}
            Bound::Owners(owner) => return Ok(Take::Held(owner)),
        }
        if let Some(address) = guard_name::by_place(directory, name)? {
            match bind(&address, writers)? {
                Bound::Ours(socket) => guard.by_place = Some(socket),
                Bound::Nobodys => {}
                Bound::Owners(owner) => {
                    guard.release();
                    return Ok(Take::Held(owner));
                }
            }
        }
        if guard.by_inode.is_none() && guard.by_place.is_none() {
            tracing::warn!(
                path = %directory.path().join(name).display(),
                "no deletion guard can be had: another user has bound its names, or sockets are \
                 forbidden here; going on without it"
            );
        }
        Ok(Take::Taken(guard))
    }

    /// True if the name is ours that every process with this directory has in common.
    pub(crate) fn is_complete(&self) -> bool {
        self.by_inode.is_some()
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
    Owners(GuardOwner),
}

fn bind(address: &SocketAddrUnix, writers: Writers) -> io::Result<Bound> {
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
        match peer(address, writers)? {
            Peer::Owner(owner) => return Ok(Bound::Owners(owner)),
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
    Owner(GuardOwner),
}

/// Whether a live owner has the guard, though no file says so.
pub(crate) fn look(directory: &Directory, name: &OsStr) -> Seen {
    let by_inode = guard_name::by_inode(directory, name).ok();
    let by_place = guard_name::by_place(directory, name).ok().flatten();
    seen(by_inode.iter().chain(&by_place), directory.writers())
}

/// The same when the directory is not there, or may not be opened.
pub(crate) fn look_without_directory(dir: &Path, name: &OsStr) -> Seen {
    let by_place = guard_name::by_place_of_missing(dir, name).ok().flatten();
    seen(by_place.iter(), Writers::at(dir))
}

fn seen<'a>(mut addresses: impl Iterator<Item = &'a SocketAddrUnix>, writers: Writers) -> Seen {
    let owner = addresses.find_map(|address| match peer(address, writers) {
        Ok(Peer::Owner(owner)) => Some(owner),
        Ok(Peer::Stranger | Peer::Silent) | Err(_) => None,
    });
    owner.map_or(Seen::Nobody, Seen::Owner)
}

/// Who has a guard's name bound.
enum Peer {
    Owner(GuardOwner),
    /// A process of a user who could not own the key.
    Stranger,
    /// Nobody, or nobody who listens.
    Silent,
}

fn peer(address: &SocketAddrUnix, writers: Writers) -> io::Result<Peer> {
    let socket = stream(SocketFlags::CLOEXEC | SocketFlags::NONBLOCK)?;
    match rustix::net::connect(&socket, address) {
        Ok(()) => {}
        // The line is full, so somebody listens.
        Err(Errno::AGAIN) => return Ok(listener(address, writers)),
        Err(Errno::CONNREFUSED) => return Ok(Peer::Silent),
        Err(errno) => return Err(errno.into()),
    }
    let (pid, uid) = socket_owner::peer(&socket)?;
    if !can_own(uid, writers) {
        return Ok(Peer::Stranger);
    }
    // The kernel names the process that called `listen`; that one may have died and left the
    // socket to its command, and its number may belong to a stranger now.
    let inode = address.abstract_name().and_then(socket_owner::listener);
    let pid = inode.and_then(|inode| {
        Some(pid)
            .filter(|pid| *pid != 0 && attest::shows_socket(*pid, inode))
            .or_else(|| attest::who_of_us_shows_socket(inode))
    });
    Ok(Peer::Owner(GuardOwner {
        pid,
        uid: Some(uid),
    }))
}

/// The process that listens on a name whose line is full, so that connecting does not tell who it is.
fn listener(address: &SocketAddrUnix, writers: Writers) -> Peer {
    let inode = address.abstract_name().and_then(socket_owner::listener);
    let uid = inode.and_then(socket_owner::user_of);
    match uid {
        Some(uid) if !can_own(uid, writers) => Peer::Stranger,
        // A user that the kernel does not tell is one who may own the key: two owners would be worse.
        _ => Peer::Owner(GuardOwner {
            pid: inode.and_then(attest::who_of_us_shows_socket),
            uid,
        }),
    }
}

/// True if a process of this user could own a key in the directory. A user whom our user namespace
/// does not know could be any.
pub(super) fn can_own(uid: u32, writers: Writers) -> bool {
    uid == 0
        || uid == geteuid().as_raw()
        || writers.include(uid)
        || (uid == UNKNOWN_USER && !process::is_in_initial_user_namespace())
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
