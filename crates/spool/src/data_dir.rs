//! The data directory: what lies where.

use std::io;
use std::path::{Path, PathBuf};

use crate::disk::Disk;
use crate::error::Error;

/// The directories of one spool.
#[derive(Clone, Debug)]
pub(crate) struct DataDir {
    /// Entries, until they are consolidated.
    pub(crate) staging: PathBuf,
    /// Batches that wait for delivery.
    pub(crate) spool: PathBuf,
    /// Batches that were delivered.
    pub(crate) sent: PathBuf,
    /// What cannot be read or delivered, each with a reason.
    pub(crate) failed: PathBuf,
}

impl DataDir {
    pub(crate) fn new(root: &Path) -> Self {
        Self {
            staging: root.join("_staging"),
            spool: root.join("spool"),
            sent: root.join("sent"),
            failed: root.join("failed"),
        }
    }

    pub(crate) fn make(&self, disk: &dyn Disk) -> Result<(), Error> {
        for dir in [&self.staging, &self.spool, &self.sent, &self.failed] {
            disk.make_dir(dir)
                .map_err(|error| Error::new("make", dir, error))?;
        }
        Ok(())
    }
}

/// Puts a whole file in place: complete or absent, whatever happens. Its name is on the disk once
/// the directory is synced.
pub(crate) fn place(disk: &dyn Disk, dir: &Path, name: &str, bytes: &[u8]) -> Result<(), Error> {
    let (path, half) = (dir.join(name), dir.join(format!(".{name}.tmp")));
    let failed = |error| Error::new("write", &path, error);
    // A crash may have left half of it; whoever calls this is the only one who writes here.
    match disk.remove(&half) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(failed(error)),
        _ => {}
    }
    let file = disk.create(&half).map_err(failed)?;
    disk.append(&file, bytes).map_err(failed)?;
    disk.sync(&file).map_err(failed)?;
    disk.rename(&half, &path).map_err(failed)
}
