//! Files in a data directory. They inherit the directory's access rights.

use std::fs::{File, OpenOptions};
use std::io;
use std::path::Path;

/// Opens a file for reading.
pub(crate) fn open(path: &Path) -> io::Result<File> {
    File::open(path)
}

/// Opens a file for appending, and creates it if it is missing.
pub(crate) fn append(path: &Path) -> io::Result<File> {
    OpenOptions::new().append(true).create(true).open(path)
}

/// Creates a file for reading and writing at any offset. Fails if the file exists.
pub(crate) fn create_new(path: &Path) -> io::Result<File> {
    OpenOptions::new()
        .read(true)
        .write(true)
        .create_new(true)
        .open(path)
}

/// Opens an existing file for reading and writing at any offset.
pub(crate) fn open_to_change(path: &Path) -> io::Result<File> {
    OpenOptions::new().read(true).write(true).open(path)
}

/// Opens an existing file for appending.
pub(crate) fn append_existing(path: &Path) -> io::Result<File> {
    OpenOptions::new().append(true).open(path)
}

/// Returns the number of a file in its file system: unknown, since not all of its file systems have
/// stable ones.
#[expect(clippy::unnecessary_wraps, reason = "same signature on every system")]
pub(crate) fn inode(_file: &File) -> io::Result<Option<u64>> {
    Ok(None)
}

/// Creates a directory and its missing parents.
pub(crate) fn make_dir(dir: &Path) -> io::Result<()> {
    std::fs::create_dir_all(dir)
}
