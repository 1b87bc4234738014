//! The kernel's lock on a file that holds something else than a record.

use std::fs::File;
use std::io;

use crate::sys;

/// Takes the lock on an open file, without waiting. `false`: somebody else has it.
///
/// It ends when the file is closed, however the process ends. The file stays readable for others,
/// also on Windows. Two handles of one process count as two owners.
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
