//! Opens and creates files in a data directory. On Windows they inherit the directory's access
//! rights.

use std::fs::{File, OpenOptions};
use std::io;
use std::path::Path;
use std::time::SystemTime;

use crate::sys::Exposed;

pub(crate) fn open(path: &Path) -> io::Result<File> {
    File::open(path)
}

pub(crate) fn append(path: &Path) -> io::Result<File> {
    OpenOptions::new().append(true).create(true).open(path)
}

/// Opens a file for reading. It is always trusted, because the access rights of its directory
/// decide who may write it.
pub(crate) fn open_trusted(path: &Path) -> io::Result<Result<File, Exposed>> {
    open(path).map(Ok)
}

/// Creates a file.
pub(crate) fn create_for_owner(path: &Path) -> io::Result<File> {
    OpenOptions::new().write(true).create_new(true).open(path)
}

/// Does nothing, because on Windows a directory inherits the access rights of the data directory.
#[expect(clippy::unnecessary_wraps, reason = "same signature on every system")]
pub(crate) fn check_dir(_dir: &Path) -> io::Result<()> {
    Ok(())
}

/// Does nothing, because Windows has no sync for directories.
#[expect(clippy::unnecessary_wraps, reason = "same signature on every system")]
pub(crate) fn sync_dir(_dir: &Path) -> io::Result<()> {
    Ok(())
}

/// Properties of a file that differ after a change of its content and after its replacement. A
/// reader sees by them that it must read the file again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct FileStamp {
    size: u64,
    created: Option<SystemTime>,
    modified: Option<SystemTime>,
}

/// True if opening failed because the file, or a directory that would contain it, does not exist.
pub(crate) fn is_absent(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::NotFound | io::ErrorKind::NotADirectory
    )
}

pub(crate) fn stamp(path: &Path) -> io::Result<Option<FileStamp>> {
    let found = match path.symlink_metadata() {
        Err(error) if is_absent(&error) => return Ok(None),
        found => found?,
    };
    Ok(Some(FileStamp {
        size: found.len(),
        created: found.created().ok(),
        modified: found.modified().ok(),
    }))
}

pub(crate) fn create_new(path: &Path) -> io::Result<File> {
    OpenOptions::new()
        .read(true)
        .write(true)
        .create_new(true)
        .open(path)
}

/// Opens an existing file for reading and writing at any offset. It is always trusted, because the
/// access rights of the directory decide who may write it.
pub(crate) fn open_trusted_to_change(path: &Path) -> io::Result<Result<File, Exposed>> {
    OpenOptions::new().read(true).write(true).open(path).map(Ok)
}

pub(crate) fn append_existing(path: &Path) -> io::Result<File> {
    OpenOptions::new().append(true).open(path)
}

/// Returns no number: not all of Windows' file systems have stable file numbers, by which a copy
/// could be recognized.
#[expect(clippy::unnecessary_wraps, reason = "same signature on every system")]
pub(crate) fn inode(_file: &File) -> io::Result<Option<u64>> {
    Ok(None)
}

pub(crate) fn make_dir(dir: &Path) -> io::Result<()> {
    std::fs::create_dir_all(dir)
}
