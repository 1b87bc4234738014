//! Size of the file system that contains the data directory, which is not determined on Windows.

use std::path::Path;

/// Returns `None`: the size of the disk is not determined on Windows. So a fixed size, not a
/// fraction of the disk, decides if `archive/` or `failed/` is reported as large.
pub(crate) fn disk_size(_dir: &Path) -> Option<u64> {
    None
}

/// Returns `None`: the free space of the disk is not determined on Windows.
pub(crate) fn disk_free(_dir: &Path) -> Option<u64> {
    None
}

/// Returns true: access control lists, which decide about it on Windows, are not checked.
pub(crate) fn is_writable(_dir: &Path) -> bool {
    true
}
