//! Size of the file system that contains the data directory. A fraction of the size determines when
//! `archive/` or `failed/` is reported as large.

use std::path::Path;

/// Returns the size in bytes of the file system that contains `dir`; `None` if the system does not
/// report the size.
pub(crate) fn disk_size(dir: &Path) -> Option<u64> {
    let disk = rustix::fs::statvfs(dir).ok()?;
    disk.f_blocks.checked_mul(disk.f_frsize)
}
