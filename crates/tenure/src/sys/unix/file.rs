//! Lock directories and lock files. No function here follows a link, truncates a file before its
//! lock is held, or blocks.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, FileType, FlockOperation, Mode, OFlags, Stat};
use rustix::io::Errno;
use rustix::process::{Gid, Uid, geteuid};

use super::super::types::{ForeignFile, Opened};
use super::names;
use crate::error::Error;

/// Maximum number of attempts to open a file that other processes keep creating and removing.
const RETRIES: usize = 1000;

/// Identity of a file, independent of its name: a file that was replaced at its path has another
/// one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FileId {
    pub(crate) dev: u64,
    pub(crate) ino: u64,
}

#[derive(Debug)]
pub(crate) struct Directory {
    fd: OwnedFd,
    path: PathBuf,
    id: FileId,
    owner: u32,
    group: u32,
    mode: Mode,
    /// True if this process has just created the directory. Only then does it set the directory's
    /// permissions.
    created: bool,
}

/// Users who may create and remove files in a directory, besides root and this user.
#[cfg(target_os = "linux")]
#[derive(Clone, Copy, Debug)]
pub(crate) struct Writers {
    owner: u32,
    /// True if group or others may write to the directory. Group members are not determined, so
    /// every user then counts as a writer.
    anyone: bool,
}

#[cfg(target_os = "linux")]
impl Writers {
    fn new(stat: &Stat) -> Self {
        Self {
            owner: stat.st_uid,
            anyone: Mode::from_raw_mode(stat.st_mode).intersects(Mode::WGRP | Mode::WOTH),
        }
    }

    /// Determines the writers of a directory that may not exist or may be inaccessible. The writer
    /// of a missing directory is the owner of its parent.
    pub(crate) fn from_path(path: &Path) -> Self {
        let parent = || rustix::fs::stat(path.parent().unwrap_or(path));
        match rustix::fs::lstat(path) {
            Ok(stat) => Self::new(&stat),
            Err(_) => Self {
                owner: parent().map_or(0, |stat| stat.st_uid),
                anyone: false,
            },
        }
    }

    pub(crate) fn include(self, uid: u32) -> bool {
        self.anyone || self.owner == uid
    }
}

#[derive(Debug)]
pub(crate) struct LockFile {
    fd: OwnedFd,
    id: FileId,
    size: u64,
    owner: u32,
    /// True if this process has just created the file. It then contains no lock record, and is
    /// removed if the attempt to acquire the key fails.
    pub(crate) created: bool,
    /// True if the file system is read-only: the file can be locked, but not written.
    is_read_only: bool,
}

/// Result of looking up the path of a lock file, without changing anything.
#[derive(Debug)]
pub(crate) enum Lookup {
    Missing,
    File(LockFile),
    /// A lock file of another user that this process cannot open. Only its metadata is known.
    NoAccess {
        id: FileId,
        uid: u32,
        user: String,
    },
    /// The directory can be listed, but its files cannot be accessed.
    Unsearchable,
    Unusable(String),
}

impl Directory {
    /// Opens a lock directory. Returns `None` if it does not exist.
    pub(crate) fn open(path: &Path) -> Result<Option<Self>, Error> {
        match open_directory(path, OFlags::NOFOLLOW) {
            Ok(fd) => Self::from_fd(fd, path).map(Some),
            Err(Errno::NOENT) => Ok(None),
            Err(errno) => Err(not_a_directory(path, errno)),
        }
    }

    /// Opens a lock directory, and creates it with its ancestors if it does not exist.
    pub(crate) fn open_or_create(path: &Path) -> Result<Self, Error> {
        if let Some(directory) = Self::open(path)? {
            return Ok(directory);
        }
        if let Some(parent) = path.parent() {
            std::fs::create_dir_all(parent)
                .map_err(|error| Error::io("create the directory", parent, error))?;
        }
        let created = match rustix::fs::mkdir(path, Mode::from_raw_mode(0o755)) {
            Ok(()) => true,
            Err(Errno::EXIST) => false,
            Err(errno) => return Err(Error::io("create the directory", path, errno)),
        };
        let fd =
            open_directory(path, OFlags::NOFOLLOW).map_err(|errno| not_a_directory(path, errno))?;
        let directory = Self::from_fd(fd, path)?;
        Ok(Self {
            created,
            ..directory
        })
    }

    /// Lets other users see which locks are held in a directory that was just created, whatever the
    /// umask. They cannot read the lock files.
    pub(crate) fn make_listable(&self) {
        if self.created && self.is_ours() {
            let _ = rustix::fs::fchmod(&self.fd, Mode::from_raw_mode(0o755));
        }
    }

    /// Returns the name of the user who owns a directory that cannot be opened, for the message
    /// about that directory.
    pub(crate) fn owner_of(path: &Path) -> String {
        rustix::fs::lstat(path).map_or_else(
            |_| "another user".to_owned(),
            |stat| names::user(stat.st_uid),
        )
    }

    /// Opens the directory of a lock file that the caller named by its path. Links in that path are
    /// followed, because the caller chose them.
    pub(crate) fn open_parent(path: &Path) -> Result<Self, Error> {
        let fd = open_directory(path, OFlags::empty())
            .map_err(|errno| Error::io("open the directory", path, errno))?;
        Self::from_fd(fd, path)
    }

    fn from_fd(fd: OwnedFd, path: &Path) -> Result<Self, Error> {
        let stat = rustix::fs::fstat(&fd).map_err(|errno| Error::io("inspect", path, errno))?;
        if can_anyone_replace_entries(&stat) {
            return Err(anyone_may_write(path));
        }
        Ok(Self {
            fd,
            path: path.to_owned(),
            id: file_id(&stat),
            owner: stat.st_uid,
            group: stat.st_gid,
            mode: Mode::from_raw_mode(stat.st_mode),
            created: false,
        })
    }

    /// True if the directory belongs to the effective user of this process. The store of a program
    /// creates lock files only in such a directory.
    pub(crate) fn is_ours(&self) -> bool {
        self.owner == geteuid().as_raw()
    }

    /// True if the directory belongs to this user or to root.
    pub(crate) fn is_ours_or_roots(&self) -> bool {
        self.is_ours() || self.owner == 0
    }

    pub(crate) fn owner_name(&self) -> String {
        names::user(self.owner)
    }

    /// True if only this user and root may create, remove or rename files in the directory.
    pub(crate) fn is_ours_alone(&self) -> bool {
        self.is_ours() && !self.mode.intersects(Mode::WGRP | Mode::WOTH)
    }

    #[cfg(target_os = "linux")]
    pub(crate) fn writers(&self) -> Writers {
        Writers {
            owner: self.owner,
            anyone: self.mode.intersects(Mode::WGRP | Mode::WOTH),
        }
    }

    /// True if a file system is mounted at the directory. Such a directory has no socket name by
    /// parent: containers may mount different directories there.
    #[cfg(target_os = "linux")]
    pub(crate) fn is_mount_point(&self) -> bool {
        use rustix::fs::{StatxAttributes, StatxFlags};
        rustix::fs::statx(&self.fd, "", AtFlags::EMPTY_PATH, StatxFlags::empty())
            .is_ok_and(|stat| stat.stx_attributes.contains(StatxAttributes::MOUNT_ROOT))
    }

    /// Acquires a shared lock on the directory itself, which is released when the result is
    /// dropped. `None`: the lock is not available.
    #[cfg(target_os = "linux")]
    pub(crate) fn lock_shared(&self) -> Option<OwnedFd> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let fd = rustix::fs::openat(&self.fd, ".", flags, Mode::empty()).ok()?;
        flock(fd.as_fd(), FlockOperation::NonBlockingLockShared)
            .is_ok_and(|locked| locked)
            .then_some(fd)
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    #[cfg(target_os = "linux")]
    pub(crate) fn id(&self) -> FileId {
        self.id
    }

    /// Metadata of the parent directory, which identifies the parent in the socket name of a
    /// deletion guard. That name stays valid after the directory is removed.
    #[cfg(target_os = "linux")]
    pub(crate) fn parent(&self) -> io::Result<Stat> {
        Ok(rustix::fs::statat(&self.fd, "..", AtFlags::empty())?)
    }

    /// Prevents systemd-tmpfiles from deleting the directory's files while the directory is open,
    /// because tmpfiles skips locked directories. Best effort: the lock fails if a cleaner is at
    /// work.
    pub(crate) fn pin_against_tmpfiles(&self) {
        let _ = rustix::fs::flock(&self.fd, FlockOperation::NonBlockingLockShared);
    }

    /// True if the file system is shared with other machines. A lock on such a file system lasts
    /// only as long as the file server keeps this machine's lease, and a removed file may still be
    /// open on another machine.
    pub(crate) fn is_network(&self) -> bool {
        rustix::fs::fstatfs(&self.fd).is_ok_and(|stat| is_network_file_system(&stat))
    }

    /// Opens the lock file, or creates it with mode 0600. A file that root creates in another
    /// user's directory belongs to that user, so that a command of root does not lock the user out.
    pub(crate) fn open_or_create_file(&self, name: &OsStr) -> Result<Opened, Error> {
        let careful = OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
        let common = OFlags::RDWR | careful;
        let owner_only = Mode::RUSR | Mode::WUSR;
        let mut is_read_only = false;
        for _ in 0..RETRIES {
            // An existing file is opened without O_CREAT. With O_CREAT, the kernel may respond
            // EACCES for another user's file in a sticky directory, and would lock the directory
            // during the call.
            let (fd, created) = match rustix::fs::openat(&self.fd, name, common, Mode::empty()) {
                Ok(fd) => (fd, false),
                Err(Errno::NOENT) => {
                    let fresh = common | OFlags::CREATE | OFlags::EXCL;
                    match rustix::fs::openat(&self.fd, name, fresh, owner_only) {
                        Ok(fd) => (fd, true),
                        Err(Errno::EXIST) => continue,
                        Err(errno) => {
                            let path = self.path.join(name);
                            return Err(Error::io("create the lock file", &path, errno));
                        }
                    }
                }
                Err(Errno::ROFS) => {
                    is_read_only = true;
                    let flags = OFlags::RDONLY | careful;
                    match rustix::fs::openat(&self.fd, name, flags, Mode::empty()) {
                        Ok(fd) => (fd, false),
                        Err(errno) => return self.classify_open_error(name, errno),
                    }
                }
                Err(errno) => return self.classify_open_error(name, errno),
            };
            let failed = |errno| Error::io("inspect", &self.path.join(name), errno);
            let fd = above_standard(fd).map_err(failed)?;
            if created {
                self.chown_to_directory_owner(&fd);
            }
            let stat = rustix::fs::fstat(&fd).map_err(failed)?;
            if stat.st_nlink == 0 {
                continue;
            }
            if let Some(why) = unusable(&stat) {
                return Err(Error::hostile(&self.path.join(name), why));
            }
            let file = LockFile {
                created,
                is_read_only,
                ..LockFile::new(fd, &stat)
            };
            return Ok(if self.can_use(&stat) {
                Opened::File(file)
            } else {
                foreign(&stat, Some(file))
            });
        }
        Err(Error::hostile(
            &self.path.join(name),
            "other processes create and remove the file faster than it can be opened",
        ))
    }

    /// Gives a file that root has just created to the directory's owner. Best effort: root of a
    /// user namespace may not give files to users outside of it.
    fn chown_to_directory_owner(&self, fd: &OwnedFd) {
        if geteuid().is_root() && self.owner != 0 {
            let (user, group) = (Uid::from_raw(self.owner), Gid::from_raw(self.group));
            let _ = rustix::fs::fchown(fd, Some(user), Some(group));
        }
    }

    /// True if this user may use the file as a lock file. The file must belong to this user, or
    /// this user is root and the file belongs to the directory's owner.
    fn can_use(&self, stat: &Stat) -> bool {
        let user = geteuid();
        stat.st_uid == user.as_raw() || (user.is_root() && stat.st_uid == self.owner)
    }

    /// Opens the lock file for reading, if it exists.
    pub(crate) fn lookup(&self, name: &OsStr) -> Result<Lookup, Error> {
        let flags =
            OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
        match rustix::fs::openat(&self.fd, name, flags, Mode::empty()) {
            Ok(fd) => {
                let stat = rustix::fs::fstat(&fd)
                    .map_err(|errno| Error::io("inspect", &self.path.join(name), errno))?;
                Ok(match unusable(&stat) {
                    _ if stat.st_nlink == 0 => Lookup::Missing,
                    Some(why) => Lookup::Unusable(why.to_owned()),
                    None => Lookup::File(LockFile::new(fd, &stat)),
                })
            }
            Err(Errno::NOENT) => Ok(Lookup::Missing),
            Err(errno) => match self.stat(name) {
                Ok(stat) => Ok(match unusable(&stat) {
                    Some(why) => Lookup::Unusable(why.to_owned()),
                    None if stat.st_uid != geteuid().as_raw() => Lookup::NoAccess {
                        id: file_id(&stat),
                        uid: stat.st_uid,
                        user: names::user(stat.st_uid),
                    },
                    None => Lookup::Unusable(io::Error::from(errno).to_string()),
                }),
                Err(Errno::NOENT) => Ok(Lookup::Missing),
                Err(Errno::ACCESS) => Ok(Lookup::Unsearchable),
                Err(_) => Err(Error::io("open", &self.path.join(name), errno)),
            },
        }
    }

    pub(crate) fn names(&self) -> Result<Vec<OsString>, Error> {
        let failed = |errno| Error::io("list the directory", &self.path, errno);
        let mut found = Vec::new();
        for entry in rustix::fs::Dir::read_from(&self.fd).map_err(failed)? {
            let name = entry.map_err(failed)?.file_name().to_bytes().to_vec();
            found.push(OsString::from_vec(name));
        }
        found.sort();
        Ok(found)
    }

    /// True if the name in the open directory leads to the file with this identity, so the file was
    /// not removed or replaced.
    pub(crate) fn has_entry(&self, name: &OsStr, id: FileId) -> io::Result<bool> {
        match self.stat(name) {
            Ok(stat) => Ok(file_id(&stat) == id),
            Err(Errno::NOENT) => Ok(false),
            Err(errno) => Err(errno.into()),
        }
    }

    pub(crate) fn try_clone(&self) -> io::Result<Self> {
        Ok(Self {
            fd: self.fd.try_clone()?,
            path: self.path.clone(),
            id: self.id,
            owner: self.owner,
            group: self.group,
            mode: self.mode,
            created: false,
        })
    }

    /// True if the path, resolved anew from the root, leads to the file with this identity. If an
    /// ancestor can no longer be searched, the name is looked up in the open directory instead.
    pub(crate) fn has_entry_at(&self, path: &Path, name: &OsStr, id: FileId) -> io::Result<bool> {
        match rustix::fs::lstat(path) {
            Ok(stat) => Ok(file_id(&stat) == id),
            Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => Ok(false),
            Err(_) => self.has_entry(name, id),
        }
    }

    pub(crate) fn remove(&self, name: &OsStr) -> io::Result<()> {
        Ok(rustix::fs::unlinkat(&self.fd, name, AtFlags::empty())?)
    }

    pub(crate) fn rename(&self, from: &OsStr, to: &OsStr) -> io::Result<()> {
        Ok(rustix::fs::renameat(&self.fd, from, &self.fd, to)?)
    }

    /// Renames a file in the directory, unless another file has the new name.
    pub(crate) fn rename_to_new(&self, from: &OsStr, to: &OsStr) -> io::Result<()> {
        let flags = rustix::fs::RenameFlags::NOREPLACE;
        Ok(rustix::fs::renameat_with(
            &self.fd, from, &self.fd, to, flags,
        )?)
    }

    fn stat(&self, name: &OsStr) -> Result<Stat, Errno> {
        rustix::fs::statat(&self.fd, name, AtFlags::SYMLINK_NOFOLLOW)
    }

    /// Determines why an existing file could not be opened.
    fn classify_open_error(&self, name: &OsStr, errno: Errno) -> Result<Opened, Error> {
        let path = self.path.join(name);
        let failed = || Err(Error::io("open the lock file", &path, errno));
        let Ok(stat) = self.stat(name) else {
            return failed();
        };
        match unusable(&stat) {
            Some(why) => Err(Error::hostile(&path, why)),
            None if stat.st_uid == geteuid().as_raw() => failed(),
            None => Ok(match self.lookup(name)? {
                Lookup::File(file) => {
                    foreign(&stat, Some(file).filter(|file| file.id == file_id(&stat)))
                }
                _ => foreign(&stat, None),
            }),
        }
    }
}

impl LockFile {
    fn new(fd: OwnedFd, stat: &Stat) -> Self {
        Self {
            fd,
            id: file_id(stat),
            size: u64::try_from(stat.st_size).unwrap_or(0),
            owner: stat.st_uid,
            created: false,
            is_read_only: false,
        }
    }

    pub(crate) fn owner(&self) -> Option<u32> {
        Some(self.owner)
    }

    /// Length of the content, as this process last read or wrote it.
    pub(crate) fn size(&self) -> u64 {
        self.size
    }

    pub(crate) fn id(&self) -> FileId {
        self.id
    }

    pub(crate) fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    /// Acquires the exclusive lock, without waiting. Returns false if another process has it.
    pub(crate) fn try_lock(&self) -> io::Result<bool> {
        self.flock(FlockOperation::NonBlockingLockExclusive)
    }

    /// Acquires a shared lock, without waiting. Returns false if an owner has the lock.
    pub(crate) fn try_lock_shared(&self) -> io::Result<bool> {
        self.flock(FlockOperation::NonBlockingLockShared)
    }

    /// Releases the lock, also for every process that inherited the descriptor.
    pub(crate) fn unlock(&self) -> io::Result<()> {
        Ok(rustix::fs::flock(&self.fd, FlockOperation::Unlock)?)
    }

    /// True if the name in the directory still leads to this file.
    pub(crate) fn is_at(&self, directory: &Directory, name: &OsStr) -> io::Result<bool> {
        directory.has_entry(name, self.id)
    }

    /// Reads the beginning of the file. Returns at most slightly more than `limit` bytes, so that
    /// the caller can reject longer files.
    pub(crate) fn read(&self, limit: usize) -> io::Result<Vec<u8>> {
        let mut bytes = Vec::new();
        let mut chunk = [0; 4096];
        while bytes.len() <= limit {
            let offset = bytes.len() as u64;
            let count =
                rustix::io::retry_on_intr(|| rustix::io::pread(&self.fd, &mut chunk, offset))?;
            bytes.extend_from_slice(&chunk[..count]);
            if count < chunk.len() {
                break;
            }
        }
        Ok(bytes)
    }

    /// Replaces the content in place. Only the holder of the lock may call this.
    pub(crate) fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        if self.is_read_only {
            return Err(io::ErrorKind::ReadOnlyFilesystem.into());
        }
        let mut written = 0;
        while written < bytes.len() {
            let offset = written as u64;
            let count = rustix::io::retry_on_intr(|| {
                rustix::io::pwrite(&self.fd, &bytes[written..], offset)
            })?;
            if count == 0 {
                return Err(io::ErrorKind::WriteZero.into());
            }
            written += count;
        }
        let length = bytes.len() as u64;
        if self.size > length {
            rustix::fs::ftruncate(&self.fd, length)?;
        }
        self.size = length;
        Ok(())
    }

    /// Turns copy-on-write off for an empty file (btrfs), so that rewriting it needs no new blocks.
    /// Best effort: other file systems overwrite in place anyway, or have no such setting.
    #[cfg(target_os = "linux")]
    pub(crate) fn overwrite_in_place(&self) {
        if let Ok(flags) = rustix::fs::ioctl_getflags(&self.fd) {
            let _ = rustix::fs::ioctl_setflags(&self.fd, flags | rustix::fs::IFlags::NOCOW);
        }
    }

    /// Does nothing: only btrfs on Linux has a setting that turns copy-on-write off for a file.
    #[cfg(not(target_os = "linux"))]
    pub(crate) fn overwrite_in_place(&self) {}

    fn flock(&self, operation: FlockOperation) -> io::Result<bool> {
        flock(self.as_fd(), operation)
    }
}

/// Acquires the exclusive lock on any file, without waiting. Returns false if another process has
/// it.
pub(crate) fn try_lock(file: &File) -> io::Result<bool> {
    flock(file.as_fd(), FlockOperation::NonBlockingLockExclusive)
}

pub(crate) fn is_on_network(dir: &Path) -> bool {
    rustix::fs::statfs(dir).is_ok_and(|stat| is_network_file_system(&stat))
}

fn flock(fd: BorrowedFd<'_>, operation: FlockOperation) -> io::Result<bool> {
    match rustix::io::retry_on_intr(|| rustix::fs::flock(fd, operation)) {
        Ok(()) => Ok(true),
        Err(Errno::WOULDBLOCK) => Ok(false),
        Err(errno) => Err(errno.into()),
    }
}

impl From<LockFile> for File {
    fn from(file: LockFile) -> Self {
        file.fd.into()
    }
}

/// Rejects a parent directory that every user may write to and that is not sticky. A user who can
/// rename its entries can replace a lock directory inside it.
pub(crate) fn check_parent(path: &Path) -> Result<(), Error> {
    let stat = rustix::fs::stat(path).map_err(|errno| Error::io("inspect", path, errno))?;
    if can_anyone_replace_entries(&stat) {
        return Err(anyone_may_write(path));
    }
    Ok(())
}

/// Suffix that distinguishes this user's lock directory from those of other users.
pub(crate) fn user_suffix() -> Option<String> {
    Some(geteuid().as_raw().to_string())
}

fn file_id(stat: &Stat) -> FileId {
    #[cfg_attr(
        target_os = "linux",
        expect(
            clippy::useless_conversion,
            clippy::unnecessary_cast,
            reason = "the type of st_dev and st_ino differs between systems"
        )
    )]
    FileId {
        dev: stat.st_dev as u64,
        ino: stat.st_ino.into(),
    }
}

fn open_directory(path: &Path, extra: OFlags) -> Result<OwnedFd, Errno> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC | extra;
    above_standard(rustix::fs::open(path, flags, Mode::empty())?)
}

/// Returns the descriptor with a number above 2. If stdin, stdout or stderr is closed, a new
/// descriptor gets its number, and later output would be written into the lock file.
pub(crate) fn above_standard(fd: OwnedFd) -> Result<OwnedFd, Errno> {
    if fd.as_raw_fd() > 2 {
        Ok(fd)
    } else {
        rustix::io::fcntl_dupfd_cloexec(&fd, 3)
    }
}

fn can_anyone_replace_entries(stat: &Stat) -> bool {
    let mode = Mode::from_raw_mode(stat.st_mode);
    mode.contains(Mode::WOTH) && !mode.contains(Mode::SVTX)
}

fn unusable(stat: &Stat) -> Option<&'static str> {
    match FileType::from_raw_mode(stat.st_mode) {
        FileType::RegularFile if stat.st_nlink > 1 => {
            Some("it is a hard link: the file has another name")
        }
        FileType::RegularFile => None,
        FileType::Symlink => Some("it is a symbolic link, which is never followed"),
        FileType::Directory => Some("it is a directory, not a lock file"),
        FileType::Fifo => Some("it is a FIFO, not a lock file"),
        FileType::Socket => Some("it is a socket, not a lock file"),
        _ => Some("it is a device, not a lock file"),
    }
}

fn foreign(stat: &Stat, file: Option<LockFile>) -> Opened {
    Opened::Foreign(ForeignFile {
        id: file_id(stat),
        uid: stat.st_uid,
        user: names::user(stat.st_uid),
        file,
    })
}

fn anyone_may_write(path: &Path) -> Error {
    Error::hostile(
        path,
        "every user may write to this directory and it is not sticky, so any user could replace \
         the lock file (`chmod o-w` or `chmod +t` it)",
    )
}

fn not_a_directory(path: &Path, errno: Errno) -> Error {
    match errno {
        Errno::LOOP | Errno::MLINK => {
            Error::hostile(path, "it is a symbolic link, which is never followed")
        }
        Errno::NOTDIR => {
            let link = rustix::fs::lstat(path)
                .is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode) == FileType::Symlink);
            Error::hostile(
                path,
                if link {
                    "it is a symbolic link, which is never followed"
                } else {
                    "it is not a directory"
                },
            )
        }
        errno => Error::io("open the directory", path, errno),
    }
}

#[cfg(target_os = "linux")]
fn is_network_file_system(stat: &rustix::fs::StatFs) -> bool {
    // Magic numbers of file systems that other machines may share: NFS, SMB1, SMB2+, Ceph, AFS, 9p,
    // Lustre, GPFS, OCFS2, GFS2, Coda, and FUSE, whose number virtiofs has too. FUSE is included
    // because its server may share the files, and may ignore locks.
    const MAGIC: [u64; 12] = [
        0x6969,
        0xff53_4d42,
        0xfe53_4d42,
        0x00c3_6400,
        0x5346_414f,
        0x0102_1997,
        0x0bd0_0bd0,
        0x4750_4653,
        0x7461_636f,
        0x0116_1970,
        0x7375_7245,
        0x6573_5546,
    ];
    #[expect(clippy::cast_sign_loss, reason = "the magic number is a bit pattern")]
    MAGIC.contains(&(stat.f_type as u64 & 0xffff_ffff))
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    #[test]
    fn fuse_and_virtiofs_are_network_file_systems_and_a_temporary_directory_is_not() {
        let mut stat = rustix::fs::statfs(std::env::temp_dir()).unwrap();
        assert!(!is_network_file_system(&stat));
        // FUSE_SUPER_MAGIC of linux/magic.h. virtiofs has no magic number of its own, so it is
        // recognized by that of FUSE.
        stat.f_type = 0x6573_5546;
        assert!(is_network_file_system(&stat));
    }
}

#[cfg(target_os = "macos")]
fn is_network_file_system(stat: &rustix::fs::StatFs) -> bool {
    const MNT_LOCAL: u32 = 0x1000;
    stat.f_flags & MNT_LOCAL == 0
}
