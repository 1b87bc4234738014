//! Linux.

use std::fs::File;

use rustix::fs::{IFlags, ioctl_getflags, ioctl_setflags};

/// Turns copy-on-write off for an empty file, where the file system has it (btrfs) and lets us:
/// overwriting a part of the file then needs no new space.
pub(crate) fn overwrite_in_place(file: &File) {
    if let Ok(flags) = ioctl_getflags(file) {
        let _ = ioctl_setflags(file, flags | IFlags::NOCOW);
    }
}
