//! The deletion guard: abstract sockets, whose names only one process at a time can bind.
//!
//! A lock file can be deleted, renamed or replaced while it is held, and another process could then
//! lock the new file and become a second owner. Each owner therefore also binds up to two abstract
//! socket names that are derived from the directory and the file name. A process that finds a name
//! bound by a living owner is refused. The kernel unbinds the names when the owner exits. Processes
//! that wait for the key connect to one of the sockets and are woken when it closes.
//!
//! Abstract sockets belong to a network namespace. Between containers that share a directory but no
//! network, only the lock file excludes a second owner.
//!
//! Any user may bind any abstract socket name. A socket with a name of the guard counts as an
//! owner's only if its user could own the key: root, this user, the directory's owner, and every
//! user if group or others may write the directory (they could lock the lock file itself). Sockets
//! of other users are ignored, so that they cannot block a key. The owner then holds the key
//! without the socket name that is taken. If both of its socket names are taken, a warning is
//! logged.

use std::ffi::OsStr;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::thread;
use std::time::Duration;

use rustix::io::Errno;
use rustix::net::{AddressFamily, Shutdown, SocketAddrUnix, SocketFlags, SocketType};
use rustix::process::geteuid;

use super::super::types::{GuardAttempt, GuardOwner};
use super::super::unix::file::{Directory, Writers, above_standard};
pub(crate) use super::waiter::Waiter;
use super::{attest, process, socket_name, socket_owner};

/// Maximum number of waiting processes with an open connection. The kernel blocks further processes
/// in `connect`.
const BACKLOG: i32 = 1024;
/// Number of attempts to bind a name whose owner does not listen: the owner may be about to listen,
/// or be releasing the name.
const BIND_TRIES: u32 = 8;
const BIND_PAUSE: Duration = Duration::from_micros(500);
/// Uid that a user namespace shows for users outside of it (`overflowuid`).
const UNKNOWN_USER: u32 = 65534;

/// Sockets that this process has bound, one for each name of the guard. `None` if the name could
/// not be bound, for example because another user has bound it.
#[derive(Debug, Default)]
pub(crate) struct DeletionGuard {
    by_inode: Option<OwnedFd>,
    by_parent: Option<OwnedFd>,
}

impl DeletionGuard {
    /// Acquires the guard of a file that is locked by this process, or that is about to be
    /// replaced.
    pub(crate) fn try_acquire(directory: &Directory, name: &OsStr) -> io::Result<GuardAttempt> {
        let mut guard = Self::default();
        let writers = directory.writers();
        match bind(&socket_name::by_inode(directory, name)?, writers)? {
            Binding::Bound(socket) => guard.by_inode = Some(socket),
            Binding::Unavailable => {}
            Binding::Owned(owner) => return Ok(GuardAttempt::Held(owner)),
        }
        if let Some(address) = socket_name::by_parent(directory, name)? {
            match bind(&address, writers)? {
                Binding::Bound(socket) => guard.by_parent = Some(socket),
                Binding::Unavailable => {}
                Binding::Owned(owner) => {
                    guard.release();
                    return Ok(GuardAttempt::Held(owner));
                }
            }
        }
        if guard.by_inode.is_none() && guard.by_parent.is_none() {
            tracing::warn!(
                path = %directory.path().join(name).display(),
                "no deletion guard: another user has bound its socket names, or this process may \
                 not create sockets; if the lock file is deleted, a second owner is not refused"
            );
        }
        Ok(GuardAttempt::Acquired(guard))
    }

    /// True if the guard excludes every other process in this network namespace that opens the
    /// directory, by any path. Only a guard with the socket named by inode does so.
    pub(crate) fn is_exclusive(&self) -> bool {
        self.by_inode.is_some()
    }

    /// Does nothing on Linux, where the guard does not prevent the owner from removing its lock
    /// file. On Windows it does.
    pub(crate) fn allow_removal(&mut self) {}

    /// Shuts the sockets down, including copies in children. The socket to which waiting processes
    /// are connected is last, so that both names are free when those processes wake.
    pub(crate) fn release(&mut self) {
        for socket in [self.by_parent.take(), self.by_inode.take()]
            .into_iter()
            .flatten()
        {
            let _ = rustix::net::shutdown(&socket, Shutdown::Both);
        }
    }

    /// Socket that a command under the tenure inherits. The socket named by inode is not inherited:
    /// a daemon that the command leaves running would keep both names bound, and later owners would
    /// have no guard.
    pub(crate) fn inheritable(&self) -> Option<BorrowedFd<'_>> {
        self.by_parent.as_ref().map(AsFd::as_fd)
    }
}

enum Binding {
    Bound(OwnedFd),
    /// The name can be neither bound nor attributed to an owner.
    Unavailable,
    Owned(GuardOwner),
}

fn bind(address: &SocketAddrUnix, writers: Writers) -> io::Result<Binding> {
    for _ in 0..BIND_TRIES {
        let socket = match stream(SocketFlags::CLOEXEC) {
            Err(error) if is_forbidden(&error) => return Ok(Binding::Unavailable),
            socket => socket?,
        };
        match rustix::net::bind(&socket, address) {
            Ok(()) => {
                rustix::net::listen(&socket, BACKLOG)?;
                return Ok(Binding::Bound(socket));
            }
            Err(Errno::ADDRINUSE) => {}
            Err(errno) => return Err(errno.into()),
        }
        match peer(address, writers)? {
            Peer::Owner(owner) => return Ok(Binding::Owned(owner)),
            Peer::Unrelated => return Ok(Binding::Unavailable),
            Peer::NotListening => thread::sleep(BIND_PAUSE),
        }
    }
    // The name is bound but no process listens, so the name proves no owner. Either an owner shut
    // the socket down while a child has a copy, or a process is about to listen. Such a process
    // checks the path of its lock file after it listens, and finds the file replaced.
    Ok(Binding::Unavailable)
}

/// Returns the living owner that has the deletion guard of a key. It is found even if its lock file
/// was deleted.
pub(crate) fn owner(directory: &Directory, name: &OsStr) -> Option<GuardOwner> {
    let by_inode = socket_name::by_inode(directory, name).ok();
    let by_parent = socket_name::by_parent(directory, name).ok().flatten();
    find_owner(by_inode.iter().chain(&by_parent), directory.writers())
}

/// Returns the living owner that has the deletion guard of a key whose directory does not exist or
/// cannot be opened, so that only the socket name by parent is known.
pub(crate) fn owner_without_directory(dir: &Path, name: &OsStr) -> Option<GuardOwner> {
    let by_parent = socket_name::by_parent_of_missing(dir, name).ok().flatten();
    find_owner(by_parent.iter(), Writers::from_path(dir))
}

fn find_owner<'a>(
    mut addresses: impl Iterator<Item = &'a SocketAddrUnix>,
    writers: Writers,
) -> Option<GuardOwner> {
    addresses.find_map(|address| match peer(address, writers) {
        Ok(Peer::Owner(owner)) => Some(owner),
        Ok(Peer::Unrelated | Peer::NotListening) | Err(_) => None,
    })
}

/// Process that has bound a socket name of the deletion guard: an owner, or a process that must not
/// block the key.
enum Peer {
    Owner(GuardOwner),
    /// A process of a user who could not own the key.
    Unrelated,
    /// No process listens on the name.
    NotListening,
}

fn peer(address: &SocketAddrUnix, writers: Writers) -> io::Result<Peer> {
    let socket = stream(SocketFlags::CLOEXEC | SocketFlags::NONBLOCK)?;
    match rustix::net::connect(&socket, address) {
        Ok(()) => {}
        // EAGAIN: a process listens on the name, but its connection queue is full. Its user cannot
        // be read from a connection and is looked up in the kernel's socket tables instead.
        Err(Errno::AGAIN) => return Ok(peer_with_full_queue(address, writers)),
        Err(Errno::CONNREFUSED) => return Ok(Peer::NotListening),
        Err(errno) => return Err(errno.into()),
    }
    let (pid, uid) = socket_owner::peer_credentials(&socket)?;
    if !can_own(uid, writers) {
        return Ok(Peer::Unrelated);
    }
    // The kernel reports the pid of the process that called `listen`. That process may have exited
    // and left the socket to its command, and the pid may belong to an unrelated process now. The
    // pid is therefore used only if the process has the socket open.
    let inode = address
        .abstract_name()
        .and_then(socket_owner::listening_inode);
    let pid = inode.and_then(|inode| {
        Some(pid)
            .filter(|pid| *pid != 0 && attest::has_socket(*pid, inode))
            .or_else(|| attest::find_own_process_with_socket(inode))
    });
    Ok(Peer::Owner(GuardOwner {
        pid,
        uid: Some(uid),
    }))
}

/// Identifies the process that listens on a name whose connection queue is full. Connecting would
/// fail, and with it the query for the peer's credentials.
fn peer_with_full_queue(address: &SocketAddrUnix, writers: Writers) -> Peer {
    let inode = address
        .abstract_name()
        .and_then(socket_owner::listening_inode);
    let uid = inode.and_then(socket_owner::creator_uid);
    match uid {
        Some(uid) if !can_own(uid, writers) => Peer::Unrelated,
        // An unknown user counts as one who could own the key: refusing is safer than admitting a
        // second owner.
        _ => Peer::Owner(GuardOwner {
            pid: inode.and_then(attest::find_own_process_with_socket),
            uid,
        }),
    }
}

/// True if a process of this user could own a key in the directory. A user outside of this user
/// namespace could be any user.
pub(super) fn can_own(uid: u32, writers: Writers) -> bool {
    uid == 0
        || uid == geteuid().as_raw()
        || writers.include(uid)
        || (uid == UNKNOWN_USER && !process::is_in_initial_user_namespace())
}

/// True if a sandbox forbids sockets. Locking works without them, so this is not an error.
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
