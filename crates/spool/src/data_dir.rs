//! The data directory: what lies where.

use std::io;
use std::path::{Path, PathBuf};

use crate::disk::Disk;
use crate::error::Error;

/// The directories of one spool.
#[derive(Clone, Debug)]
pub(crate) struct DataDir {
    root: PathBuf,
    /// Entries, until they are consolidated.
    pub(crate) staging: PathBuf,
    /// Batches that wait for delivery.
    pub(crate) spool: PathBuf,
    /// Which batches were delivered.
    pub(crate) sent: PathBuf,
    /// Batches that have no destination.
    pub(crate) archive: PathBuf,
    /// Totals by day, and which entries are in them.
    pub(crate) usage: PathBuf,
    /// What cannot be read or delivered, each with a reason.
    pub(crate) failed: PathBuf,
}

impl DataDir {
    pub(crate) fn new(root: &Path) -> Self {
        Self {
            root: root.to_owned(),
            staging: root.join("_staging"),
            spool: root.join("spool"),
            sent: root.join("sent"),
            failed: root.join("failed"),
            archive: root.join("archive"),
            usage: root.join("usage"),
        }
    }

    pub(crate) fn make(&self, disk: &dyn Disk) -> Result<(), Error> {
        let mut made = false;
        for dir in self.all().into_iter().filter(|dir| !dir.is_dir()) {
            disk.make_dir(dir)
                .map_err(|error| Error::new("make", dir, error))?;
            made = true;
        }
        if made {
            // What is put into a directory is as safe as the directory's own name.
            disk.sync_dir(&self.root)
                .map_err(|error| Error::new("sync", &self.root, error))?;
        }
        Ok(())
    }

    pub(crate) fn all(&self) -> [&Path; 6] {
        let Self {
            root: _,
            staging,
            spool,
            sent,
            archive,
            usage,
            failed,
        } = self;
        [staging, spool, sent, archive, usage, failed].map(PathBuf::as_path)
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
