//! Directories of a data directory, and file operations that use the disk alone, not the reserve
//! (space preallocated for a full disk).

use std::fs::File;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::disk::{Disk, DiskReader, RealDisk};
use crate::error::Error;
use crate::sys;

/// Paths of the directories in one data directory.
#[derive(Clone, Debug)]
pub(crate) struct DataDir {
    /// Disk through which files in the directories are read and written. Tests use disks that fail
    /// or crash.
    pub(crate) disk: Arc<dyn Disk>,
    /// Directory of the entries that are not consolidated yet.
    pub(crate) staging: PathBuf,
    /// Directory of the pending batches.
    pub(crate) spool: PathBuf,
    /// Directory of the journal of batch outcomes.
    pub(crate) sent: PathBuf,
    /// Directory of the batches that were archived because no destination is configured.
    pub(crate) archive: PathBuf,
    /// Directory of the totals by day and by hour, and of the journal of consolidated entries.
    pub(crate) usage: PathBuf,
    /// Directory of damaged files and rejected batches, each with a file that names the reason.
    pub(crate) failed: PathBuf,
}

impl DataDir {
    pub(crate) fn new(root: &Path) -> Self {
        Self::on(Arc::new(RealDisk), root)
    }

    /// Path of the data directory itself, which contains all other directories.
    pub(crate) fn root(&self) -> &Path {
        self.spool.parent().unwrap_or(&self.spool)
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

/// Maximum length of a file that is read into memory. Entries and journals may be longer: they are
/// read line by line.
const MAX_BYTES: u64 = 16 << 20;

/// Returns the content of a file; `None` if the file is longer than any that spool writes.
pub(crate) fn read_bounded(disk: &dyn Disk, path: &Path) -> io::Result<Option<Vec<u8>>> {
    let mut bytes = Vec::new();
    DiskReader::open(disk, path)?
        .take(MAX_BYTES + 1)
        .read_to_end(&mut bytes)?;
    Ok((bytes.len() as u64 <= MAX_BYTES).then_some(bytes))
}

/// Calls `each` with the names of the regular files in a directory, in no particular order. A
/// missing directory counts as empty.
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

/// Renames a file and replaces a regular file at the new path. If the new path is on another file
/// system the file is copied and then removed: a crash may leave both, but the copy is complete.
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

/// Path under which a file is written before it is renamed to its own path, so that readers never
/// see a part of it.
pub(crate) fn temporary_path(path: &Path) -> PathBuf {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    path.with_file_name(format!(".{name}.tmp"))
}

/// Fails if the path exists and is not a regular file. Spool creates only regular files, so another
/// program created the path, and it must be preserved. (promise S8)
fn check_replaceable(path: &Path) -> io::Result<()> {
    match path.symlink_metadata() {
        Ok(found) if !found.is_file() => Err(sys::not_a_file()),
        _ => Ok(()),
    }
}

/// Copies a file of any length. A crash leaves the complete copy or none.
fn copy(disk: &dyn Disk, from: &Path, to: &Path) -> io::Result<()> {
    check_replaceable(to)?;
    let mut source = DiskReader::open(disk, from)?;
    let temporary = temporary_path(to);
    match disk.remove(&temporary) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let file = disk.create(&temporary)?;
    let copied = append_all(disk, &mut source, &file)
        .and_then(|()| disk.sync(&file))
        .and_then(|()| disk.rename(&temporary, to));
    if copied.is_err() {
        // Remove the unfinished file, which would take space on a full disk.
        let _ = disk.remove(&temporary);
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

/// Writes a file that is complete or absent after a crash. The caller must sync the directory to
/// make the file's name durable, and must be the only writer of this file.
pub(crate) fn write_atomically(
    disk: &dyn Disk,
    dir: &Path,
    name: &str,
    bytes: &[u8],
) -> Result<(), Error> {
    let path = dir.join(name);
    let temporary = temporary_path(&path);
    let failed = |error| Error::new("write", &path, error);
    check_replaceable(&path).map_err(failed)?;
    // A crash may have left a part of the file at the temporary path. Remove it, because a file
    // cannot be created at an existing path.
    match disk.remove(&temporary) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(failed(error)),
        _ => {}
    }
    let file = disk.create(&temporary).map_err(failed)?;
    let placed = (disk.append(&file, bytes))
        .and_then(|()| disk.sync(&file))
        .and_then(|()| disk.rename(&temporary, &path));
    if placed.is_err() {
        // Remove the unfinished file, which would take space on a full disk.
        let _ = disk.remove(&temporary);
    }
    placed.map_err(failed)
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;

    /// S8: files of other programs are never destroyed.
    #[test]
    fn write_rename_and_copy_refuse_to_replace_anything_but_a_regular_file() {
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
            assert_eq!(left, 2, "a temporary file is left beside the {what}");
        }
    }
}
