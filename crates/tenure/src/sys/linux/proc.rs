//! Reads files in `/proc`. The kernel generates the text anew for every `read`, so one large read
//! is much cheaper than the small reads of the standard library.

use std::os::fd::OwnedFd;

use rustix::buffer::spare_capacity;
use rustix::fs::{Mode, OFlags};

const READ_SIZE: usize = 8192;

/// Reads a file of a few lines; `None` if it cannot be read.
pub(super) fn read_small(path: &str) -> Option<Vec<u8>> {
    let file = open(path)?;
    let mut text = Vec::with_capacity(READ_SIZE);
    rustix::io::read(&file, spare_capacity(&mut text)).ok()?;
    Some(text)
}

/// Reads a table of any length, which the kernel returns in pieces.
pub(super) fn read_table(path: &str) -> Option<Vec<u8>> {
    let file = open(path)?;
    let mut text = Vec::with_capacity(READ_SIZE);
    while rustix::io::read(&file, spare_capacity(&mut text)).ok()? > 0 {
        text.reserve(READ_SIZE);
    }
    Some(text)
}

fn open(path: &str) -> Option<OwnedFd> {
    rustix::fs::open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).ok()
}
