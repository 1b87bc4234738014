//! Functions for Linux.

use std::fs::File;

use rustix::fs::{IFlags, ioctl_getflags, ioctl_setflags};

/// Turns copy-on-write off for an empty file, if the file system supports it (btrfs). Overwriting a
/// part of the file then allocates no new space.
pub(crate) fn overwrite_in_place(file: &File) {
    if let Ok(flags) = ioctl_getflags(file) {
        let _ = ioctl_setflags(file, flags | IFlags::NOCOW);
    }
}
