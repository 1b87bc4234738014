//! A reserve for a full disk: some space that producers cannot use, so that what was staged can
//! still be delivered and deleted.
//!
//! The deliverer gives the reserve up when the disk is full. While it is gone nothing is staged, so
//! that the space goes to the deliverer; it is laid by again as soon as there is room for it.

use std::io;
use std::path::{Path, PathBuf};

use crate::disk::Disk;
use crate::error::Error;

pub(crate) const FILE: &str = ".reserve";
/// Enough for a batch, what is noted about it, and the halves it may be split into.
pub(crate) const BYTES: usize = 4 << 20;

/// The reserve of a staging directory.
#[derive(Clone, Debug)]
pub(crate) struct Reserve {
    dir: PathBuf,
    path: PathBuf,
}

impl Reserve {
    pub(crate) fn of(staging: &Path) -> Self {
        Self {
            dir: staging.to_owned(),
            path: staging.join(FILE),
        }
    }

    pub(crate) fn is_there(&self) -> bool {
        self.path.exists()
    }

    /// Gives the space to whoever needs it to deliver. `true`: there was some.
    pub(crate) fn give_up(&self, disk: &dyn Disk) -> bool {
        disk.remove(&self.path).is_ok()
    }

    /// Lays so many bytes by, unless they are. It takes twice the room for a moment: the deliverer
    /// must not lose what it was just given.
    pub(crate) fn lay_by(&self, disk: &dyn Disk, bytes: usize) -> Result<(), Error> {
        if self.is_there() {
            return Ok(());
        }
        // Others may do the same at this moment.
        let half = self
            .dir
            .join(format!("{FILE}-{}.tmp", uuid::Uuid::now_v7().simple()));
        let made = self.fill(disk, &half, bytes);
        if made.is_err() {
            let _ = disk.remove(&half);
        }
        made.map_err(|error| Error::new("lay a reserve by in", &self.dir, error))
    }

    fn fill(&self, disk: &dyn Disk, half: &Path, bytes: usize) -> io::Result<()> {
        let file = disk.create(half)?;
        let chunk = noise();
        for _ in 0..(2 * bytes).div_ceil(chunk.len()) {
            disk.append(&file, &chunk)?;
        }
        disk.truncate(&file, bytes as u64)?;
        disk.rename(half, &self.path)
    }
}

/// Bytes that no file system stores in less space.
fn noise() -> Vec<u8> {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut bytes = Vec::with_capacity(64 * 1024);
    while bytes.len() < 64 * 1024 {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        bytes.extend(state.to_le_bytes());
    }
    bytes
}
