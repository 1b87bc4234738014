//! Windows.

use std::fs::File;
use std::io;
use std::path::Path;

/// Makes a directory; who may read it is inherited from the one above.
pub(crate) fn make_dir(dir: &Path) -> io::Result<()> {
    std::fs::create_dir_all(dir)
}

/// Makes a file, which is written at its end.
pub(crate) fn create(path: &Path) -> io::Result<File> {
    File::options()
        .read(true)
        .append(true)
        .create_new(true)
        .open(path)
}

/// Directories cannot be synced here: the file system's own journal keeps its names.
pub(crate) fn sync_dir(_dir: &Path) -> io::Result<()> {
    Ok(())
}
