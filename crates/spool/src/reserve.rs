//! A reserve for a full disk: some space that producers cannot use, so that what was staged can
//! still be delivered and deleted.
//!
//! There are two. One is for delivery alone: it must be able to note what it does. The other is for
//! folding what is staged. The deliverer gives that up when the disk is full. While it is gone nothing is staged, so
//! that the space goes to the deliverer; it is laid by again as soon as there is room for it.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use crate::disk::Disk;
use crate::error::{Error, is_full};

pub(crate) const FILE: &str = ".reserve";
/// Enough for a batch, what is noted about it, and the halves it may be split into.
pub(crate) const BYTES: usize = 4 << 20;
/// Enough to note what comes of an attempt, until what was delivered makes room.
pub(crate) const BYTES_FOR_DELIVERY: usize = 256 << 10;

/// How long to wait for another process that does the same.
const MOST_TRIES: u32 = 100;

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
    ///
    /// On a disk that has little room it is less, but something.
    pub(crate) fn lay_by(&self, disk: &dyn Disk, bytes: usize) -> Result<(), Error> {
        let half = self.dir.join(format!("{FILE}.tmp"));
        let mut last = Ok(());
        for bytes in [bytes, bytes / 4, bytes / 16] {
            for _ in 0..MOST_TRIES {
                if self.is_there() {
                    return Ok(());
                }
                last = self.fill(disk, &half, bytes);
                match &last {
                    Err(error) if error.kind() == io::ErrorKind::ResourceBusy => {
                        thread::sleep(Duration::from_millis(5));
                    }
                    _ => break,
                }
            }
            if !last.as_ref().is_err_and(is_full) {
                break;
            }
        }
        last.map_err(|error| Error::new("lay a reserve by in", &self.dir, error))
    }

    fn fill(&self, disk: &dyn Disk, half: &Path, bytes: usize) -> io::Result<()> {
        let file = match disk.create(half) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                // Somebody is at it, or was when it ended.
                if tenure::file::try_lock(&File::open(half)?)? {
                    disk.remove(half)?;
                }
                return Err(io::ErrorKind::ResourceBusy.into());
            }
            file => file?,
        };
        // Held until the file is closed.
        tenure::file::try_lock(&file)?;
        let chunk = noise();
        let filled = (0..(2 * bytes).div_ceil(chunk.len()))
            .try_for_each(|_| disk.append(&file, &chunk))
            .and_then(|()| disk.truncate(&file, bytes as u64))
            .and_then(|()| disk.rename(half, &self.path));
        if filled.is_err() {
            let _ = disk.remove(half);
        }
        filled
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::disk::RealDisk;

    #[test]
    fn it_is_laid_by_once_and_given_up_once() {
        let dir = tempfile::tempdir().unwrap();
        let reserve = Reserve::of(dir.path());
        for _ in 0..2 {
            reserve.lay_by(&RealDisk, 100_000).unwrap();
            assert_eq!(std::fs::metadata(&reserve.path).unwrap().len(), 100_000);
        }
        assert!(reserve.give_up(&RealDisk));
        assert!(!reserve.give_up(&RealDisk));
        assert!(!reserve.is_there());
    }

    #[test]
    fn what_a_crash_left_of_it_is_removed() {
        let dir = tempfile::tempdir().unwrap();
        let reserve = Reserve::of(dir.path());
        std::fs::write(dir.path().join(".reserve.tmp"), "half").unwrap();
        reserve.lay_by(&RealDisk, 100_000).unwrap();
        assert!(reserve.is_there());
    }
}
