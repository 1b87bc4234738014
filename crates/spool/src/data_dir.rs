//! The data directory: what lies where.

use std::fs::File;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::disk::{Disk, DiskReader, RealDisk};
use crate::error::Error;
use crate::sys;

/// The directories of one spool.
#[derive(Clone, Debug)]
pub(crate) struct DataDir {
    /// What they are on.
    pub(crate) disk: Arc<dyn Disk>,
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
        Self::on(Arc::new(RealDisk), root)
    }

    pub(crate) fn on(disk: Arc<dyn Disk>, root: &Path) -> Self {
        Self {
            disk,
            staging: root.join("_staging"),
            spool: root.join("spool"),
            sent: root.join("sent"),
            failed: root.join("failed"),
            archive: root.join("archive"),
            usage: root.join("usage"),
        }
    }

    pub(crate) fn make(&self, disk: &dyn Disk) -> Result<(), Error> {
        for dir in self.all() {
            disk.make_dir(dir)
                .map_err(|error| Error::new("make", dir, error))?;
        }
        Ok(())
    }

    pub(crate) fn all(&self) -> [&Path; 6] {
        let Self {
            disk: _,
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

/// Anything longer is none of ours, except entries and books, which are read by lines.
const MAX_BYTES: u64 = 16 << 20;

/// The content of a file, unless it is longer than anything we write.
pub(crate) fn read_bounded(disk: &dyn Disk, path: &Path) -> io::Result<Option<Vec<u8>>> {
    let mut bytes = Vec::new();
    DiskReader::open(disk, path)?
        .take(MAX_BYTES + 1)
        .read_to_end(&mut bytes)?;
    Ok((bytes.len() as u64 <= MAX_BYTES).then_some(bytes))
}

/// Calls `each` with the files of a directory, in no order. A directory that is not there has none.
pub(crate) fn for_each_file(
    disk: &dyn Disk,
    dir: &Path,
    mut each: impl FnMut(&str),
) -> Result<(), Error> {
    let listed = disk.list(dir, &mut |name, is_file| {
        if let Some(name) = name.to_str().filter(|_| is_file) {
            each(name);
        }
    });
    match listed {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        listed => listed.map_err(|error| Error::new("list", dir, error)),
    }
}

/// Gives a file another name, in place of whatever has that name, in a directory that may be on
/// another file system. Then it is copied: a crash may leave both, the new one complete.
pub(crate) fn rename(disk: &dyn Disk, from: &Path, to: &Path) -> io::Result<()> {
    check_replaceable(to)?;
    match disk.rename(from, to) {
        Err(error) if error.kind() == io::ErrorKind::CrossesDevices => {}
        renamed => return renamed,
    }
    copy(disk, from, to)?;
    disk.sync_dir(to.parent().unwrap_or(Path::new(".")))?;
    disk.remove(from)
}

/// The name of a file while it is written.
pub(crate) fn half_of(path: &Path) -> PathBuf {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    path.with_file_name(format!(".{name}.tmp"))
}

/// Only files are replaced: anything else that has the name of one is not ours. (S8)
fn check_replaceable(path: &Path) -> io::Result<()> {
    match path.symlink_metadata() {
        Ok(found) if !found.is_file() => Err(sys::not_a_file()),
        _ => Ok(()),
    }
}

/// Copies a file of any length, complete or not at all.
fn copy(disk: &dyn Disk, from: &Path, to: &Path) -> io::Result<()> {
    check_replaceable(to)?;
    let mut source = DiskReader::open(disk, from)?;
    let half = half_of(to);
    match disk.remove(&half) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let file = disk.create(&half)?;
    let copied = append_all(disk, &mut source, &file)
        .and_then(|()| disk.sync(&file))
        .and_then(|()| disk.rename(&half, to));
    if copied.is_err() {
        // A full disk must not fill with halves of files.
        let _ = disk.remove(&half);
    }
    copied
}

fn append_all(disk: &dyn Disk, source: &mut DiskReader<'_>, file: &File) -> io::Result<()> {
    let mut piece = vec![0; 64 * 1024];
    loop {
        match source.read(&mut piece) {
            Ok(0) => return Ok(()),
            Ok(read) => disk.append(file, &piece[..read])?,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}

/// Puts a whole file in place on the disk: complete or absent, whatever happens. Its name is on the
/// disk once the directory is synced.
pub(crate) fn write_atomically(
    disk: &dyn Disk,
    dir: &Path,
    name: &str,
    bytes: &[u8],
) -> Result<(), Error> {
    let path = dir.join(name);
    let half = half_of(&path);
    let failed = |error| Error::new("write", &path, error);
    check_replaceable(&path).map_err(failed)?;
    // A crash may have left half of it; whoever calls this is the only one who writes here.
    match disk.remove(&half) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(failed(error)),
        _ => {}
    }
    let file = disk.create(&half).map_err(failed)?;
    let placed = (disk.append(&file, bytes))
        .and_then(|()| disk.sync(&file))
        .and_then(|()| disk.rename(&half, &path));
    if placed.is_err() {
        // A full disk must not fill with halves of files.
        let _ = disk.remove(&half);
    }
    placed.map_err(failed)
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;

    /// S8: what is not ours is never destroyed.
    #[test]
    fn file_is_not_written_over_something_that_is_no_file() {
        for what in ["directory", "link", "socket"] {
            let dir = tempfile::tempdir().unwrap();
            let [path, other] = ["x", "y"].map(|name| dir.path().join(name));
            match what {
                "directory" => std::fs::create_dir(&path).unwrap(),
                "link" => std::os::unix::fs::symlink("elsewhere", &path).unwrap(),
                _ => drop(std::os::unix::net::UnixListener::bind(&path).unwrap()),
            }
            let kind = || path.symlink_metadata().unwrap().file_type();
            let before = kind();
            let refused = write_atomically(&RealDisk, dir.path(), "x", b"text").unwrap_err();
            assert!(
                refused.to_string().contains("not a regular file"),
                "{refused}"
            );
            std::fs::write(&other, "text").unwrap();
            let refused = rename(&RealDisk, &other, &path).unwrap_err();
            assert!(
                refused.to_string().contains("not a regular file"),
                "{refused}"
            );
            let refused = copy(&RealDisk, &other, &path).unwrap_err();
            assert!(
                refused.to_string().contains("not a regular file"),
                "{refused}"
            );
            assert_eq!(kind(), before, "{what}");
            let left = dir.path().read_dir().unwrap().count();
            assert_eq!(left, 2, "half a file is left beside a {what}");
        }
    }
}
