//! Kernel locks on files other than lock files, such as data files that are being written.

use std::fs::File;
use std::io;
use std::path::Path;

use crate::sys;

/// Acquires the lock on an open file, without waiting. Returns false if another handle has the
/// lock.
///
/// The kernel releases the lock when the file is closed or the process ends. Other processes can
/// read the file meanwhile, also on Windows. Two handles in one process count as two owners.
///
/// ```
/// let path = tempfile::NamedTempFile::new()?.into_temp_path();
/// let open = || std::fs::File::options().read(true).write(true).open(&path);
///
/// let writer = open()?;
/// assert!(tenure::file::try_lock(&writer)?);
/// assert!(!tenure::file::try_lock(&open()?)?);
/// drop(writer);
/// assert!(tenure::file::try_lock(&open()?)?);
/// # Ok::<(), std::io::Error>(())
/// ```
pub fn try_lock(file: &File) -> io::Result<bool> {
    sys::file::try_lock(file)
}

/// True if a directory is on a file system that other machines may share, such as NFS. A lock there
/// may not be visible to the other machines.
///
/// ```
/// assert!(!tenure::file::is_on_network(&std::env::temp_dir()));
/// ```
pub fn is_on_network(dir: &Path) -> bool {
    sys::file::is_on_network(dir)
}
