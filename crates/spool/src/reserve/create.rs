//! Creation of the reserve, the file whose space is allocated for a full disk.

use std::fs::File;
use std::io;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use super::{FILE, LOCK_TIMEOUT, MIN_BYTES, Reserve};
use crate::data_dir::DataDir;
use crate::disk::Disk;
use crate::error::{Error, is_full};
use crate::sys;

/// Length of a new reserve. Three eighths of it are two areas, which alternate and each fit a batch
/// with the notes (small JSON values) about its delivery. The rest fits 250,000 record ids, as many
/// as one file of the entry journal has.
pub(crate) const BYTES: usize = 8 << 20;

impl Reserve {
    /// Creates the reserve with this length, unless the reserve exists. The reserve is shorter if
    /// the disk has less free space than twice this length. If several processes create the reserve
    /// at the same time, one of them succeeds and the others wait.
    pub(crate) fn create(&self, disk: &dyn Disk, bytes: usize) -> Result<(), Error> {
        if self.exists() {
            return Ok(());
        }
        let found = self.path.symlink_metadata();
        if found.is_ok_and(|found| !found.is_file()) {
            // Never replace a link, directory or device at this path, because spool did not create
            // it. (promise S8)
            tracing::warn!(path = %self.path.display(), "cannot create the reserve for a full disk: another object than a regular file is at its path");
            return Ok(());
        }
        let dir = self.path.parent().unwrap_or(Path::new("."));
        let half = dir.join(format!("{FILE}.tmp"));
        self.create_in(disk, dir, &half, bytes)
            .map_err(|error| Error::new("create a reserve in", dir, error))
    }

    fn create_in(&self, disk: &dyn Disk, dir: &Path, half: &Path, bytes: usize) -> io::Result<()> {
        let start = Instant::now();
        loop {
            let Some(file) = lock(disk, half)? else {
                if self.exists() {
                    return Ok(());
                }
                if start.elapsed() > LOCK_TIMEOUT {
                    return Err(io::ErrorKind::ResourceBusy.into());
                }
                thread::sleep(Duration::from_millis(2));
                continue;
            };
            // The lock on the unfinished reserve file is held here. Only its holder fills, renames
            // or removes that file.
            if self.exists() {
                return match disk.remove(half) {
                    // Another process has removed the unfinished file already. On Windows
                    // `is_same_file` cannot detect that.
                    Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
                    removed => removed,
                };
            }
            let filled = fill(disk, &file, bytes)
                .and_then(|()| disk.rename(half, &self.path))
                .and_then(|()| disk.sync_dir(dir));
            if filled.is_err() {
                let _ = disk.remove(half);
            }
            return filled;
        }
    }
}

/// Removes the second reserve, which only earlier versions used, if the reserve of this version
/// exists.
pub(crate) fn remove_old(disk: &dyn Disk, data: &DataDir) {
    let old = data.spool.join(FILE);
    if Reserve::new(&data.staging).exists()
        && old.is_file()
        && let Err(error) = disk.remove(&old)
    {
        tracing::debug!(%error, path = %old.display(), "reserve of an earlier version not removed");
    }
}

/// Creates the unfinished reserve file, or opens the one that a crash has left, and locks it.
/// Returns `None` if another process holds the lock or has just finished the file.
fn lock(disk: &dyn Disk, half: &Path) -> io::Result<Option<File>> {
    let file = match disk.create(half) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            match disk.open_to_write(half) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
                file => file?,
            }
        }
        file => file?,
    };
    if !tenure::file::try_lock(&file)? {
        return Ok(None);
    }
    // Another process may have renamed or removed the file between the open and the lock above. The
    // lock then protects a file that has another name or none, and the caller must try again.
    let is_named = sys::is_same_file(&file, half)?;
    Ok(is_named.then_some(file))
}

fn fill(disk: &dyn Disk, file: &File, bytes: usize) -> io::Result<()> {
    disk.truncate(file, 0)?;
    // Turn copy-on-write off, where the file system supports that. Otherwise every overwrite of the
    // reserve would need new space, which a full disk does not have.
    sys::overwrite_in_place(file);
    let mut bytes = bytes as u64;
    loop {
        // Twice the length is written and half of it freed, so that the reserve takes at most half
        // of the free space.
        match fill_up_to(disk, file, 2 * bytes) {
            Err(error) if is_full(&error) && bytes / 2 >= MIN_BYTES => {
                disk.truncate(file, 0)?;
                bytes /= 2;
            }
            filled => {
                filled?;
                break;
            }
        }
    }
    disk.truncate(file, bytes)?;
    disk.sync(file)
}

fn fill_up_to(disk: &dyn Disk, file: &File, bytes: u64) -> io::Result<()> {
    let (chunk, mut at) = (noise(), 0);
    while at < bytes {
        disk.write_at(file, at, &chunk)?;
        at += chunk.len() as u64;
    }
    Ok(())
}

/// Returns bytes that no file system can compress, deduplicate or store as a hole.
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
    fn reserve_is_created_once_with_all_its_bytes() {
        let dir = tempfile::tempdir().unwrap();
        let reserve = Reserve::new(dir.path());
        for _ in 0..2 {
            reserve.create(&RealDisk, 100_000).unwrap();
            assert_eq!(std::fs::metadata(reserve.path()).unwrap().len(), 100_000);
        }
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1);
    }

    #[test]
    fn reserve_is_created_after_a_crash_left_a_part_of_it() {
        let dir = tempfile::tempdir().unwrap();
        let reserve = Reserve::new(dir.path());
        std::fs::write(dir.path().join(".reserve.tmp"), "part").unwrap();
        reserve.create(&RealDisk, 100_000).unwrap();
        assert_eq!(std::fs::metadata(reserve.path()).unwrap().len(), 100_000);
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1);
    }

    #[test]
    fn processes_that_create_the_reserve_at_once_all_succeed() {
        for _ in 0..200 {
            let dir = tempfile::tempdir().unwrap();
            let reserve = Reserve::new(dir.path());
            let start = std::sync::Barrier::new(6);
            thread::scope(|scope| {
                for _ in 0..6 {
                    scope.spawn(|| {
                        start.wait();
                        reserve.create(&RealDisk, 70_000).unwrap();
                        assert!(reserve.exists());
                    });
                }
            });
            assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1);
        }
    }
}
