//! Size of the file system that a directory is on.

use std::path::Path;

/// Returns the size of the file system in bytes; `None` if the system does not report it.
pub(crate) fn disk_size(dir: &Path) -> Option<u64> {
    let disk = rustix::fs::statvfs(dir).ok()?;
    disk.f_blocks.checked_mul(disk.f_frsize)
}
