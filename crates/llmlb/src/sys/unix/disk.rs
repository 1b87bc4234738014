//! The disk that a directory is on.

use std::path::Path;

/// Size of the disk in bytes; `None` if the system does not tell.
pub(crate) fn disk_size(dir: &Path) -> Option<u64> {
    let disk = rustix::fs::statvfs(dir).ok()?;
    disk.f_blocks.checked_mul(disk.f_frsize)
}
