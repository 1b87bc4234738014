//! Lock directories and lock files. Nothing here follows a link, truncates before the lock is
//! held, or blocks.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, FileType, FlockOperation, Mode, OFlags, Stat};
use rustix::io::Errno;
use rustix::process::{Gid, Uid, geteuid};

use super::super::testimony::{Foreign, Opened};
use super::names;
use crate::error::Error;

/// How often opening is tried again when files come and go under our hands.
const RETRIES: usize = 1000;

/// Which file this is, whatever its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FileId {
    pub(crate) dev: u64,
    pub(crate) ino: u64,
}

/// An open directory in which lock files live.
#[derive(Debug)]
pub(crate) struct Directory {
    fd: OwnedFd,
    path: PathBuf,
    id: FileId,
    owner: u32,
    group: u32,
    mode: Mode,
    /// This call created it.
    created: bool,
}

/// The users who may create and remove files in a directory, besides root and ourselves.
#[cfg(target_os = "linux")]
#[derive(Clone, Copy, Debug)]
pub(crate) struct Writers {
    owner: u32,
    /// The group or others may write: it could be any user.
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

    /// Those of a directory that may not be there, or may not be opened. In place of one that is not
    /// there, the owner of its parent decides.
    pub(crate) fn at(path: &Path) -> Self {
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

/// An open lock file.
#[derive(Debug)]
pub(crate) struct LockFile {
    fd: OwnedFd,
    id: FileId,
    size: u64,
    owner: u32,
    /// This call created it.
    pub(crate) created: bool,
    /// The file system is read-only: the file can be locked, but not written.
    is_read_only: bool,
}

/// What lies at a path, seen without touching it.
#[derive(Debug)]
pub(crate) enum Look {
    Missing,
    File(LockFile),
    /// A file that only its owner may read.
    Closed {
        id: FileId,
        uid: u32,
        user: String,
    },
    /// Its directory may be listed, but not searched.
    Hidden,
    Unusable(String),
}

impl Directory {
    /// Opens a lock directory, creating it first if asked to. `None`: there is none.
    pub(crate) fn open(path: &Path, create: bool) -> Result<Option<Self>, Error> {
        match open_directory(path, OFlags::NOFOLLOW) {
            Ok(fd) => return Self::trust(fd, path).map(Some),
            Err(Errno::NOENT) if create => {}
            Err(Errno::NOENT) => return Ok(None),
            Err(errno) => return Err(not_a_directory(path, errno)),
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
        let directory = Self::trust(fd, path)?;
        Ok(Some(Self {
            created,
            ..directory
        }))
    }

    /// Lets other users see which locks are held in a directory that we have just created, whatever the
    /// umask. They cannot read the lock files.
    pub(crate) fn show_to_all(&self) {
        if self.created && self.is_ours() {
            let _ = rustix::fs::fchmod(&self.fd, Mode::from_raw_mode(0o755));
        }
    }

    /// The owner of a directory that may not be opened.
    pub(crate) fn owner_of(path: &Path) -> String {
        rustix::fs::lstat(path).map_or_else(
            |_| "another user".to_owned(),
            |stat| names::user(stat.st_uid),
        )
    }

    /// Opens the directory of a lock file that was named by its path. Links on the way are the
    /// caller's own.
    pub(crate) fn open_parent(path: &Path) -> Result<Self, Error> {
        let fd = open_directory(path, OFlags::empty())
            .map_err(|errno| Error::io("open the directory", path, errno))?;
        Self::trust(fd, path)
    }

    fn trust(fd: OwnedFd, path: &Path) -> Result<Self, Error> {
        let stat = rustix::fs::fstat(&fd).map_err(|errno| Error::io("look at", path, errno))?;
        if anyone_may_replace_entries(&stat) {
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

    /// Whether it belongs to the user this process acts as.
    pub(crate) fn is_ours(&self) -> bool {
        self.owner == geteuid().as_raw()
    }

    /// Whether it belongs to us or to the administrator.
    pub(crate) fn is_ours_or_roots(&self) -> bool {
        self.is_ours() || self.owner == 0
    }

    /// The name of the user it belongs to.
    pub(crate) fn owner_name(&self) -> String {
        names::user(self.owner)
    }

    /// True if no other user but root may create, remove or rename files in it.
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

    /// True if another file system, or another part of one, is mounted here.
    #[cfg(target_os = "linux")]
    pub(crate) fn is_mount_point(&self) -> bool {
        use rustix::fs::{StatxAttributes, StatxFlags};
        rustix::fs::statx(&self.fd, "", AtFlags::EMPTY_PATH, StatxFlags::empty())
            .is_ok_and(|stat| stat.stx_attributes.contains(StatxAttributes::MOUNT_ROOT))
    }

    /// Takes a shared lock on the directory itself, which ends when the result is dropped. `None`: it
    /// cannot be had.
    #[cfg(target_os = "linux")]
    pub(crate) fn lock_for_an_instant(&self) -> Option<OwnedFd> {
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

    /// The directory that this one is in.
    #[cfg(target_os = "linux")]
    pub(crate) fn parent(&self) -> io::Result<Stat> {
        Ok(rustix::fs::statat(&self.fd, "..", AtFlags::empty())?)
    }

    /// Keeps cleaners of temporary directories away for as long as the directory is open: they
    /// pass over what is locked. Best effort, since a cleaner may be at work just now.
    pub(crate) fn keep_cleaners_off(&self) {
        let _ = rustix::fs::flock(&self.fd, FlockOperation::NonBlockingLockShared);
    }

    /// Whether the file system is shared with other machines, where a lock lives only as long as
    /// the client's lease and a removed file may still be open elsewhere.
    pub(crate) fn is_network(&self) -> bool {
        rustix::fs::fstatfs(&self.fd).is_ok_and(|stat| network_file_system(&stat))
    }

    /// Opens the lock file, or creates it with mode 0600. A file that root creates in the directory of
    /// another user belongs to that user, so that one command of root does not lock the user out.
    pub(crate) fn open_or_create(&self, name: &OsStr) -> Result<Opened, Error> {
        let careful = OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
        let common = OFlags::RDWR | careful;
        let owner_only = Mode::RUSR | Mode::WUSR;
        let mut is_read_only = false;
        for _ in 0..RETRIES {
            // What exists is opened without O_CREAT: to that, the kernel may answer EACCES for
            // somebody's file in a sticky directory, and it would lock the directory.
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
                        Err(errno) => return self.cannot_open(name, errno),
                    }
                }
                Err(errno) => return self.cannot_open(name, errno),
            };
            let failed = |errno| Error::io("look at", &self.path.join(name), errno);
            let fd = above_standard(fd).map_err(failed)?;
            if created {
                self.hand_to_owner(&fd);
            }
            let stat = rustix::fs::fstat(&fd).map_err(failed)?;
            if stat.st_nlink == 0 {
                continue;
            }
            if let Some(why) = unusable(&stat) {
                return Err(Error::hostile(&self.path.join(name), why));
            }
            let file = LockFile {
                is_read_only,
                ..LockFile::new(fd, &stat, created)
            };
            return Ok(if self.may_use(&stat) {
                Opened::File(file)
            } else {
                foreign(&stat, Some(file))
            });
        }
        Err(Error::hostile(
            &self.path.join(name),
            "it is being created and removed without end",
        ))
    }

    /// Gives a file that root has just created to the directory's owner. Best effort: the root of a user
    /// namespace may not give files to users whom the namespace does not know.
    fn hand_to_owner(&self, fd: &OwnedFd) {
        if geteuid().is_root() && self.owner != 0 {
            let (user, group) = (Uid::from_raw(self.owner), Gid::from_raw(self.group));
            let _ = rustix::fs::fchown(fd, Some(user), Some(group));
        }
    }

    /// True for a file of our own, and for root also for a file of the directory's owner.
    fn may_use(&self, stat: &Stat) -> bool {
        let user = geteuid();
        stat.st_uid == user.as_raw() || (user.is_root() && stat.st_uid == self.owner)
    }

    /// Opens the lock file for reading, if there is one.
    pub(crate) fn look(&self, name: &OsStr) -> Result<Look, Error> {
        let flags =
            OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
        match rustix::fs::openat(&self.fd, name, flags, Mode::empty()) {
            Ok(fd) => {
                let stat = rustix::fs::fstat(&fd)
                    .map_err(|errno| Error::io("look at", &self.path.join(name), errno))?;
                Ok(match unusable(&stat) {
                    _ if stat.st_nlink == 0 => Look::Missing,
                    Some(why) => Look::Unusable(why.to_owned()),
                    None => Look::File(LockFile::new(fd, &stat, false)),
                })
            }
            Err(Errno::NOENT) => Ok(Look::Missing),
            Err(errno) => match self.stat(name) {
                Ok(stat) => Ok(match unusable(&stat) {
                    Some(why) => Look::Unusable(why.to_owned()),
                    None if stat.st_uid != geteuid().as_raw() => Look::Closed {
                        id: file_id(&stat),
                        uid: stat.st_uid,
                        user: names::user(stat.st_uid),
                    },
                    None => Look::Unusable(io::Error::from(errno).to_string()),
                }),
                Err(Errno::NOENT) => Ok(Look::Missing),
                Err(Errno::ACCESS) => Ok(Look::Hidden),
                Err(_) => Err(Error::io("open", &self.path.join(name), errno)),
            },
        }
    }

    /// The names of the files in it.
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

    /// Whether the name leads to this file.
    pub(crate) fn leads_to(&self, name: &OsStr, id: FileId) -> io::Result<bool> {
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

    /// True if the path, resolved anew from the root, leads to this file. If we may not search an
    /// ancestor any more, the directory that we have open decides.
    pub(crate) fn is_reached_by(&self, path: &Path, name: &OsStr, id: FileId) -> io::Result<bool> {
        match rustix::fs::lstat(path) {
            Ok(stat) => Ok(file_id(&stat) == id),
            Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => Ok(false),
            Err(_) => self.leads_to(name, id),
        }
    }

    pub(crate) fn remove(&self, name: &OsStr) -> io::Result<()> {
        Ok(rustix::fs::unlinkat(&self.fd, name, AtFlags::empty())?)
    }

    /// Renames a file in it. A file that has the new name already is replaced.
    pub(crate) fn rename(&self, from: &OsStr, to: &OsStr) -> io::Result<()> {
        Ok(rustix::fs::renameat(&self.fd, from, &self.fd, to)?)
    }

    /// Renames a file in it, unless another file has the new name.
    pub(crate) fn rename_to_new(&self, from: &OsStr, to: &OsStr) -> io::Result<()> {
        let flags = rustix::fs::RenameFlags::NOREPLACE;
        Ok(rustix::fs::renameat_with(
            &self.fd, from, &self.fd, to, flags,
        )?)
    }

    fn stat(&self, name: &OsStr) -> Result<Stat, Errno> {
        rustix::fs::statat(&self.fd, name, AtFlags::SYMLINK_NOFOLLOW)
    }

    /// Says why an existing file could not be opened.
    fn cannot_open(&self, name: &OsStr, errno: Errno) -> Result<Opened, Error> {
        let path = self.path.join(name);
        let failed = || Err(Error::io("open the lock file", &path, errno));
        let Ok(stat) = self.stat(name) else {
            return failed();
        };
        match unusable(&stat) {
            Some(why) => Err(Error::hostile(&path, why)),
            None if stat.st_uid == geteuid().as_raw() => failed(),
            None => Ok(match self.look(name)? {
                Look::File(file) => {
                    foreign(&stat, Some(file).filter(|file| file.id == file_id(&stat)))
                }
                _ => foreign(&stat, None),
            }),
        }
    }
}

impl LockFile {
    fn new(fd: OwnedFd, stat: &Stat, created: bool) -> Self {
        Self {
            fd,
            id: file_id(stat),
            size: u64::try_from(stat.st_size).unwrap_or(0),
            owner: stat.st_uid,
            created,
            is_read_only: false,
        }
    }

    /// The user that the file belongs to.
    pub(crate) fn owner(&self) -> Option<u32> {
        Some(self.owner)
    }

    /// The length of the content, as this process last saw or wrote it.
    pub(crate) fn size(&self) -> u64 {
        self.size
    }

    pub(crate) fn id(&self) -> FileId {
        self.id
    }

    pub(crate) fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    /// Takes the kernel's lock, without waiting. `false`: somebody else has it.
    pub(crate) fn try_lock(&self) -> io::Result<bool> {
        self.flock(FlockOperation::NonBlockingLockExclusive)
    }

    /// Takes a shared lock, without waiting. `false`: an owner has the lock.
    pub(crate) fn try_lock_shared(&self) -> io::Result<bool> {
        self.flock(FlockOperation::NonBlockingLockShared)
    }

    /// Whether a lock could be had just now, by taking a shared one for an instant.
    pub(crate) fn probe(&self) -> io::Result<bool> {
        let free = self.try_lock_shared()?;
        if free {
            self.unlock()?;
        }
        Ok(free)
    }

    /// Lets go, for every process that inherited the descriptor too.
    pub(crate) fn unlock(&self) -> io::Result<()> {
        Ok(rustix::fs::flock(&self.fd, FlockOperation::Unlock)?)
    }

    /// Whether the name still leads to this file.
    pub(crate) fn is_at(&self, directory: &Directory, name: &OsStr) -> io::Result<bool> {
        directory.leads_to(name, self.id)
    }

    /// The file's beginning, a little more than `limit` bytes of it at most.
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

    /// Lets the blocks of an empty file be overwritten where they are (btrfs), so that rewriting
    /// needs no new ones. Best effort: other file systems do so anyway, or cannot.
    #[cfg(target_os = "linux")]
    pub(crate) fn overwrite_in_place(&self) {
        if let Ok(flags) = rustix::fs::ioctl_getflags(&self.fd) {
            let _ = rustix::fs::ioctl_setflags(&self.fd, flags | rustix::fs::IFlags::NOCOW);
        }
    }

    /// There is no such setting.
    #[cfg(not(target_os = "linux"))]
    pub(crate) fn overwrite_in_place(&self) {}

    fn flock(&self, operation: FlockOperation) -> io::Result<bool> {
        flock(self.as_fd(), operation)
    }
}

/// Takes the kernel's lock on any file, without waiting. `false`: somebody else has it.
pub(crate) fn try_lock(file: &File) -> io::Result<bool> {
    flock(file.as_fd(), FlockOperation::NonBlockingLockExclusive)
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

/// Refuses a directory that anyone may write and that is not sticky: whoever can rename its
/// entries can replace a lock directory inside it.
pub(crate) fn check_parent(path: &Path) -> Result<(), Error> {
    let stat = rustix::fs::stat(path).map_err(|errno| Error::io("look at", path, errno))?;
    if anyone_may_replace_entries(&stat) {
        return Err(anyone_may_write(path));
    }
    Ok(())
}

/// A suffix that keeps this user's directory apart from other users'.
pub(crate) fn user_suffix() -> Option<String> {
    Some(geteuid().as_raw().to_string())
}

fn file_id(stat: &Stat) -> FileId {
    #[cfg_attr(
        target_os = "linux",
        expect(
            clippy::useless_conversion,
            clippy::unnecessary_cast,
            reason = "dev_t differs between systems"
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

/// With stdin, stdout or stderr closed, a new descriptor takes their number, and what is meant for
/// them would land in the lock file.
pub(crate) fn above_standard(fd: OwnedFd) -> Result<OwnedFd, Errno> {
    if fd.as_raw_fd() > 2 {
        Ok(fd)
    } else {
        rustix::io::fcntl_dupfd_cloexec(&fd, 3)
    }
}

fn anyone_may_replace_entries(stat: &Stat) -> bool {
    let mode = Mode::from_raw_mode(stat.st_mode);
    mode.contains(Mode::WOTH) && !mode.contains(Mode::SVTX)
}

fn unusable(stat: &Stat) -> Option<&'static str> {
    match FileType::from_raw_mode(stat.st_mode) {
        FileType::RegularFile if stat.st_nlink > 1 => {
            Some("it is a hard link: the file has a second name elsewhere")
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
    Opened::Foreign(Foreign {
        id: file_id(stat),
        uid: stat.st_uid,
        user: names::user(stat.st_uid),
        file,
    })
}

fn anyone_may_write(path: &Path) -> Error {
    Error::hostile(
        path,
        "anyone may write to this directory and it is not sticky, so anyone could replace the \
         lock file (chmod o-w it, or chmod +t)",
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
fn network_file_system(stat: &rustix::fs::StatFs) -> bool {
    // NFS, SMB1, SMB2+, Ceph, AFS, 9p, Lustre, GPFS, OCFS2, GFS2, Coda, and FUSE, which is also how
    // virtiofs presents itself: what the server at its other end does with locks is its own affair.
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
        assert!(!network_file_system(&stat));
        // FUSE_SUPER_MAGIC of linux/magic.h; virtiofs has no magic number of its own.
        stat.f_type = 0x6573_5546;
        assert!(network_file_system(&stat));
    }
}

#[cfg(target_os = "macos")]
fn network_file_system(stat: &rustix::fs::StatFs) -> bool {
    const MNT_LOCAL: u32 = 0x1000;
    stat.f_flags & MNT_LOCAL == 0
}
