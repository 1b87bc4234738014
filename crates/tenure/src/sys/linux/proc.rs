//! Reading `/proc`: the kernel writes the text anew for every `read`, so one large read is much
//! cheaper than the small ones of the standard library.

use std::os::fd::OwnedFd;

use rustix::buffer::spare_capacity;
use rustix::fs::{Mode, OFlags};

const LARGE: usize = 8192;

/// A file of a few lines; `None` if it cannot be read.
pub(super) fn short(path: &str) -> Option<Vec<u8>> {
    let file = open(path)?;
    let mut text = Vec::with_capacity(LARGE);
    rustix::io::read(&file, spare_capacity(&mut text)).ok()?;
    Some(text)
}

/// A table of any length, which the kernel hands out in pieces.
pub(super) fn table(path: &str) -> Option<Vec<u8>> {
    let file = open(path)?;
    let mut text = Vec::with_capacity(LARGE);
    while rustix::io::read(&file, spare_capacity(&mut text)).ok()? > 0 {
        text.reserve(LARGE);
    }
    Some(text)
}

fn open(path: &str) -> Option<OwnedFd> {
    rustix::fs::open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).ok()
}
