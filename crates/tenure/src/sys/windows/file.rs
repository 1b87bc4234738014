//! Lock directories and lock files on Windows, where locks are mandatory and a held file cannot be
//! deleted.
//!
//! Windows locks are mandatory: other processes cannot read a locked range. So one byte far beyond
//! the content is locked, and the lock record stays readable.

use std::ffi::{OsStr, OsString};
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::windows::fs::{FileExt, OpenOptionsExt};
use std::os::windows::io::AsRawHandle;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use windows_sys::Win32::Foundation::{
    ERROR_ACCESS_DENIED, ERROR_IO_PENDING, ERROR_LOCK_VIOLATION, ERROR_SHARING_VIOLATION,
    GENERIC_READ, GENERIC_WRITE,
};
use windows_sys::Win32::Storage::FileSystem::{
    BY_HANDLE_FILE_INFORMATION, FILE_ATTRIBUTE_DIRECTORY, FILE_ATTRIBUTE_REPARSE_POINT,
    FILE_FLAG_OPEN_REPARSE_POINT, FILE_SHARE_DELETE, FILE_SHARE_READ, FILE_SHARE_WRITE,
    GetDriveTypeW, GetFileInformationByHandle, GetVolumePathNameW, LOCKFILE_EXCLUSIVE_LOCK,
    LOCKFILE_FAIL_IMMEDIATELY, LockFileEx, UnlockFileEx,
};
use windows_sys::Win32::System::IO::OVERLAPPED;

use super::super::types::Opened;
use super::handle::wide;
use crate::error::Error;

/// Number of attempts to create or open a lock file. A file that another process is removing cannot
/// be opened for a moment.
const RETRIES: usize = 500;
/// Pause between two attempts to create or open a lock file.
const RETRY_PAUSE: Duration = Duration::from_millis(1);
/// Offset of the locked byte, far beyond any content, so that other processes can read the lock
/// record while the file is locked.
const LOCKED_BYTE: u64 = 1 << 62;
const SHARE_ALL: u32 = FILE_SHARE_READ | FILE_SHARE_WRITE | FILE_SHARE_DELETE;
const DRIVE_REMOTE: u32 = 4;

/// Identity of a file, independent of its name: a file that was replaced at its path has another
/// one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FileId {
    volume: u32,
    index: u64,
}

#[derive(Debug)]
pub(crate) struct Directory {
    path: PathBuf,
}

#[derive(Debug)]
pub(crate) struct LockFile {
    file: File,
    id: FileId,
    size: u64,
    pub(crate) created: bool,
}

#[derive(Debug)]
pub(crate) enum Lookup {
    Missing,
    File(LockFile),
    #[expect(dead_code, reason = "file permissions of this kind exist on Unix only")]
    NoAccess {
        id: FileId,
        uid: u32,
        user: String,
    },
    #[expect(dead_code, reason = "file permissions of this kind exist on Unix only")]
    Unsearchable,
    Unusable(String),
}

impl Directory {
    pub(crate) fn open_or_create(path: &Path) -> Result<Self, Error> {
        if let Some(directory) = Self::open(path)? {
            return Ok(directory);
        }
        fs::create_dir_all(path).map_err(|error| Error::io("create the directory", path, error))?;
        let missing = || Error::io("open the directory", path, io::ErrorKind::NotFound);
        Self::open(path)?.ok_or_else(missing)
    }

    pub(crate) fn open(path: &Path) -> Result<Option<Self>, Error> {
        let meta = match fs::symlink_metadata(path) {
            Ok(meta) => meta,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(Error::io("open the directory", path, error)),
        };
        if meta.is_symlink() {
            return Err(Error::hostile(
                path,
                "it is a symbolic link, which is never followed",
            ));
        }
        if !meta.is_dir() {
            return Err(Error::hostile(path, "it is not a directory"));
        }
        Ok(Some(Self {
            path: path.to_owned(),
        }))
    }

    pub(crate) fn open_parent(path: &Path) -> Result<Self, Error> {
        match fs::metadata(path) {
            Ok(meta) if meta.is_dir() => Ok(Self {
                path: path.to_owned(),
            }),
            Ok(_) => Err(Error::hostile(path, "it is not a directory")),
            Err(error) => Err(Error::io("open the directory", path, error)),
        }
    }

    /// Always true: temporary directories belong to one user on Windows, and access lists protect
    /// other directories.
    pub(crate) fn is_ours(&self) -> bool {
        true
    }

    pub(crate) fn is_ours_or_roots(&self) -> bool {
        true
    }

    pub(crate) fn owner_name(&self) -> String {
        "another user".to_owned()
    }

    pub(crate) fn owner_of(_path: &Path) -> String {
        "another user".to_owned()
    }

    pub(crate) fn is_ours_alone(&self) -> bool {
        true
    }

    pub(crate) fn make_listable(&self) {}

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    pub(crate) fn pin_against_tmpfiles(&self) {}

    pub(crate) fn is_network(&self) -> bool {
        is_on_network(&self.path)
    }

    pub(crate) fn open_or_create_file(&self, name: &OsStr) -> Result<Opened, Error> {
        let path = self.path.join(name);
        for _ in 0..RETRIES {
            let opened = match options().create_new(true).open(&path) {
                Ok(file) => Ok((file, true)),
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => options()
                    .open(&path)
                    .map(|file| (file, false))
                    .map_err(|error| ("open the lock file", error)),
                Err(error) => Err(("create the lock file", error)),
            };
            let (file, created) = match opened {
                Ok(opened) => opened,
                Err((_, error)) if is_transient(&error) => {
                    if let Some(why) = unusable_path(&path) {
                        return Err(Error::hostile(&path, why));
                    }
                    thread::sleep(RETRY_PAUSE);
                    continue;
                }
                Err((act, error)) => return Err(Error::io(act, &path, error)),
            };
            let info = information(&file).map_err(|error| Error::io("inspect", &path, error))?;
            if let Some(why) = unusable(&info) {
                return Err(Error::hostile(&path, why));
            }
            return Ok(Opened::File(LockFile {
                created,
                ..LockFile::new(file, &info)
            }));
        }
        let last = options()
            .open(&path)
            .map_or_else(|error| error, |_| io::ErrorKind::TimedOut.into());
        Err(Error::io("open the lock file", &path, last))
    }

    pub(crate) fn lookup(&self, name: &OsStr) -> Result<Lookup, Error> {
        let path = self.path.join(name);
        let opened = OpenOptions::new()
            .access_mode(GENERIC_READ)
            .share_mode(SHARE_ALL)
            .custom_flags(FILE_FLAG_OPEN_REPARSE_POINT)
            .open(&path);
        match opened {
            Ok(file) => {
                let info =
                    information(&file).map_err(|error| Error::io("inspect", &path, error))?;
                Ok(match unusable(&info) {
                    Some(why) => Lookup::Unusable(why.to_owned()),
                    None => Lookup::File(LockFile::new(file, &info)),
                })
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Lookup::Missing),
            // Read the kind of the object at the path, because Windows reports "access denied" both
            // for a directory and for a file that is being removed.
            Err(error) => match unusable_path(&path) {
                Some(why) => Ok(Lookup::Unusable(why)),
                None if is_transient(&error) => Ok(Lookup::Missing),
                None => Ok(Lookup::Unusable(error.to_string())),
            },
        }
    }

    pub(crate) fn names(&self) -> Result<Vec<OsString>, Error> {
        let failed = |error| Error::io("list the directory", &self.path, error);
        let mut found = Vec::new();
        for entry in fs::read_dir(&self.path).map_err(failed)? {
            found.push(entry.map_err(failed)?.file_name());
        }
        found.sort();
        Ok(found)
    }

    pub(crate) fn has_entry(&self, name: &OsStr, id: FileId) -> io::Result<bool> {
        // The file is opened without any access rights. That succeeds whatever share mode other
        // handles have, so it also works while the owner holds the file.
        let opened = OpenOptions::new()
            .access_mode(0)
            .share_mode(SHARE_ALL)
            .custom_flags(FILE_FLAG_OPEN_REPARSE_POINT)
            .open(self.path.join(name));
        match opened {
            Ok(file) => Ok(file_id(&information(&file)?) == id),
            Err(error) if is_transient(&error) => Ok(false),
            Err(error) => Err(error),
        }
    }

    pub(crate) fn try_clone(&self) -> io::Result<Self> {
        Ok(Self {
            path: self.path.clone(),
        })
    }

    pub(crate) fn has_entry_at(&self, _path: &Path, name: &OsStr, id: FileId) -> io::Result<bool> {
        self.has_entry(name, id)
    }

    pub(crate) fn remove(&self, name: &OsStr) -> io::Result<()> {
        fs::remove_file(self.path.join(name))
    }

    pub(crate) fn rename(&self, from: &OsStr, to: &OsStr) -> io::Result<()> {
        fs::rename(self.path.join(from), self.path.join(to))
    }

    pub(crate) fn rename_to_new(&self, from: &OsStr, to: &OsStr) -> io::Result<()> {
        self.rename(from, to)
    }
}

impl LockFile {
    fn new(file: File, info: &BY_HANDLE_FILE_INFORMATION) -> Self {
        Self {
            file,
            id: file_id(info),
            size: u64::from(info.nFileSizeHigh) << 32 | u64::from(info.nFileSizeLow),
            created: false,
        }
    }

    pub(crate) fn try_lock(&self) -> io::Result<bool> {
        self.lock(LOCKFILE_EXCLUSIVE_LOCK)
    }

    pub(crate) fn try_lock_shared(&self) -> io::Result<bool> {
        self.lock(0)
    }

    pub(crate) fn unlock(&self) -> io::Result<()> {
        let mut range = locked_byte();
        // SAFETY: the handle is open and the structure lives through the call.
        let done = unsafe { UnlockFileEx(self.file.as_raw_handle(), 0, 1, 0, &raw mut range) };
        if done == 0 {
            Err(io::Error::last_os_error())
        } else {
            Ok(())
        }
    }

    pub(crate) fn id(&self) -> FileId {
        self.id
    }

    pub(crate) fn size(&self) -> u64 {
        self.size
    }

    pub(crate) fn owner(&self) -> Option<u32> {
        None
    }

    pub(crate) fn is_at(&self, directory: &Directory, name: &OsStr) -> io::Result<bool> {
        directory.has_entry(name, self.id)
    }

    pub(crate) fn read(&self, limit: usize) -> io::Result<Vec<u8>> {
        let mut bytes = Vec::new();
        let mut chunk = [0; 4096];
        while bytes.len() <= limit {
            match self.file.seek_read(&mut chunk, bytes.len() as u64)? {
                0 => break,
                count => bytes.extend_from_slice(&chunk[..count]),
            }
        }
        Ok(bytes)
    }

    pub(crate) fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        let mut written = 0;
        while written < bytes.len() {
            match self.file.seek_write(&bytes[written..], written as u64)? {
                0 => return Err(io::ErrorKind::WriteZero.into()),
                count => written += count,
            }
        }
        let length = bytes.len() as u64;
        if self.size > length {
            self.file.set_len(length)?;
        }
        self.size = length;
        Ok(())
    }

    /// Does nothing: Windows has no setting that turns copy-on-write off for a file.
    pub(crate) fn overwrite_in_place(&self) {}

    fn lock(&self, kind: u32) -> io::Result<bool> {
        lock(&self.file, kind)
    }
}

/// Acquires the exclusive lock on any file, without waiting. Returns false if another process has
/// it.
pub(crate) fn try_lock(file: &File) -> io::Result<bool> {
    lock(file, LOCKFILE_EXCLUSIVE_LOCK)
}

pub(crate) fn is_on_network(dir: &Path) -> bool {
    let path = wide(fs::canonicalize(dir).unwrap_or_else(|_| dir.to_owned()));
    let mut root = [0; 512];
    // SAFETY: both strings end in zero, and the length is that of the buffer.
    let known = unsafe { GetVolumePathNameW(path.as_ptr(), root.as_mut_ptr(), 512) };
    // SAFETY: the buffer holds a string that ends in zero.
    known != 0 && unsafe { GetDriveTypeW(root.as_ptr()) } == DRIVE_REMOTE
}

fn lock(file: &File, kind: u32) -> io::Result<bool> {
    let mut range = locked_byte();
    let flags = kind | LOCKFILE_FAIL_IMMEDIATELY;
    // SAFETY: the handle is open and the structure lives through the call.
    let done = unsafe { LockFileEx(file.as_raw_handle(), flags, 0, 1, 0, &raw mut range) };
    if done != 0 {
        return Ok(true);
    }
    let error = io::Error::last_os_error();
    match code(&error) {
        Some(ERROR_LOCK_VIOLATION | ERROR_IO_PENDING) => Ok(false),
        _ => Err(error),
    }
}

/// Accepts every directory: temporary directories belong to one user on Windows.
pub(crate) fn check_parent(_path: &Path) -> Result<(), Error> {
    Ok(())
}

pub(crate) fn user_suffix() -> Option<String> {
    None
}

fn options() -> OpenOptions {
    let mut options = OpenOptions::new();
    options
        .read(true)
        .write(true)
        .access_mode(GENERIC_READ | GENERIC_WRITE)
        .share_mode(SHARE_ALL)
        .custom_flags(FILE_FLAG_OPEN_REPARSE_POINT);
    options
}

fn information(file: &File) -> io::Result<BY_HANDLE_FILE_INFORMATION> {
    let mut info = BY_HANDLE_FILE_INFORMATION::default();
    // SAFETY: the handle is open and the structure outlives the call.
    let done = unsafe { GetFileInformationByHandle(file.as_raw_handle(), &raw mut info) };
    if done == 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(info)
    }
}

fn file_id(info: &BY_HANDLE_FILE_INFORMATION) -> FileId {
    FileId {
        volume: info.dwVolumeSerialNumber,
        index: u64::from(info.nFileIndexHigh) << 32 | u64::from(info.nFileIndexLow),
    }
}

fn unusable(info: &BY_HANDLE_FILE_INFORMATION) -> Option<&'static str> {
    if info.dwFileAttributes & FILE_ATTRIBUTE_REPARSE_POINT != 0 {
        Some("it is a symbolic link or another reparse point, which is never followed")
    } else if info.dwFileAttributes & FILE_ATTRIBUTE_DIRECTORY != 0 {
        Some("it is a directory, not a lock file")
    } else if info.nNumberOfLinks > 1 {
        Some("it is a hard link: the file has another name")
    } else {
        None
    }
}

fn unusable_path(path: &Path) -> Option<String> {
    let meta = fs::symlink_metadata(path).ok()?;
    if meta.is_symlink() {
        return Some(
            "it is a symbolic link or another reparse point, which is never followed".to_owned(),
        );
    }
    meta.is_dir()
        .then(|| "it is a directory, not a lock file".to_owned())
}

/// True for errors that opening a file returns while another process removes it or has it open
/// without sharing it.
fn is_transient(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::NotFound
        || matches!(
            code(error),
            Some(ERROR_ACCESS_DENIED | ERROR_SHARING_VIOLATION)
        )
}

fn code(error: &io::Error) -> Option<u32> {
    error
        .raw_os_error()
        .and_then(|code| u32::try_from(code).ok())
}

fn locked_byte() -> OVERLAPPED {
    let mut range = OVERLAPPED::default();
    #[expect(
        clippy::cast_possible_truncation,
        reason = "the offset is passed in two halves"
    )]
    {
        range.Anonymous.Anonymous.Offset = LOCKED_BYTE as u32;
        range.Anonymous.Anonymous.OffsetHigh = (LOCKED_BYTE >> 32) as u32;
    }
    range
}
