//! Functions for Windows.

use std::fs::File;
use std::io;
use std::os::windows::fs::{FileExt, OpenOptionsExt};
use std::path::Path;

use super::not_a_file;

/// `FILE_FLAG_OPEN_REPARSE_POINT`: opens a link itself instead of its target.
const OPEN_REPARSE_POINT: u32 = 0x0020_0000;

/// Creates a directory. Its permissions are inherited from the parent.
pub(crate) fn make_dir(dir: &Path) -> io::Result<()> {
    std::fs::create_dir(dir)
}

/// Creates a file.
pub(crate) fn create(path: &Path) -> io::Result<File> {
    File::options()
        .read(true)
        .write(true)
        .create_new(true)
        .open(path)
}

/// Opens an existing regular file. Does not follow links.
pub(crate) fn open(path: &Path, to_write: bool) -> io::Result<File> {
    let file = File::options()
        .read(true)
        .write(to_write)
        .custom_flags(OPEN_REPARSE_POINT)
        .open(path)?;
    if !file.metadata()?.is_file() {
        return Err(not_a_file());
    }
    Ok(file)
}

pub(crate) fn write_at(file: &File, mut at: u64, mut bytes: &[u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        let written = file.seek_write(bytes, at)?;
        if written == 0 {
            return Err(io::ErrorKind::WriteZero.into());
        }
        bytes = &bytes[written..];
        at += written as u64;
    }
    Ok(())
}

/// Does nothing: Windows cannot sync a directory. The journal of the file system protects the names
/// in a directory.
pub(crate) fn sync_dir(_dir: &Path) -> io::Result<()> {
    Ok(())
}

/// True if the path exists. The standard library has no identity of files on Windows. At worst two
/// processes create the reserve file one after the other.
pub(crate) fn is_same_file(_file: &File, path: &Path) -> io::Result<bool> {
    path.try_exists()
}

/// Does nothing: NTFS overwrites files in place, so the reserve can be written on a full disk
/// without a setting.
pub(crate) fn overwrite_in_place(_file: &File) {}
