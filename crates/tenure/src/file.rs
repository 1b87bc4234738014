//! Kernel locks on files other than lock files, such as data files that are being written.

use std::fs::File;
use std::io;

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
