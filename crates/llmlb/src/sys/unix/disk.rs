//! Size of the file system that contains the data directory. It determines from which size
//! `archive/` or `failed/` is reported as large.

use std::path::Path;

/// Returns the size in bytes of the file system that contains `dir`; `None` if the system does not
/// report the size.
pub(crate) fn disk_size(dir: &Path) -> Option<u64> {
    let disk = rustix::fs::statvfs(dir).ok()?;
    disk.f_blocks.checked_mul(disk.f_frsize)
}

/// Returns the bytes that this user may still write to the file system of `dir`; `None` if the system does not
/// report them.
pub(crate) fn disk_free(dir: &Path) -> Option<u64> {
    let disk = rustix::fs::statvfs(dir).ok()?;
    disk.f_bavail.checked_mul(disk.f_frsize)
}

/// True if this user may create files in `dir`, so that a check can report a directory that is not
/// writable.
pub(crate) fn is_writable(dir: &Path) -> bool {
    use rustix::fs::{Access, access};
    access(dir, Access::WRITE_OK | Access::EXEC_OK).is_ok()
}
