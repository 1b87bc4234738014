//! Windows.

use std::fs::File;
use std::io;
use std::os::windows::fs::FileExt;
use std::path::Path;

/// Makes a directory; who may read it is inherited from the one above.
pub(crate) fn make_dir(dir: &Path) -> io::Result<()> {
    std::fs::create_dir(dir)
}

/// Makes a file.
pub(crate) fn create(path: &Path) -> io::Result<File> {
    File::options()
        .read(true)
        .write(true)
        .create_new(true)
        .open(path)
}

/// Writes to a place in a file.
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

/// Directories cannot be synced here: the file system's own journal keeps its names.
pub(crate) fn sync_dir(_dir: &Path) -> io::Result<()> {
    Ok(())
}
