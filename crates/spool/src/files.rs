//! Files of the data directory that are written as a whole: on the disk or, while the disk is full,
//! in the reserve.
//!
//! A file in the reserve (space preallocated for a full disk) takes precedence over a file with the
//! same name on the disk, which is older. [`flush`] writes the files in the reserve to the disk and
//! removes them from the reserve.

use std::io;
use std::path::Path;

use crate::data_dir;
use crate::disk::Disk;
use crate::error::{Error, is_full};
use crate::reserve::{Reserve, ReserveUse};

/// Writes a file that is complete or absent after a crash; on a full disk it goes into the reserve.
/// The caller must sync the directory to make the file's name durable.
pub(crate) fn write_atomically(
    disk: &dyn Disk,
    dir: &Path,
    name: &str,
    bytes: &[u8],
) -> Result<(), Error> {
    write_for(disk, dir, name, bytes, ReserveUse::NewFile)
}

/// Writes a batch as [`write_atomically`] does. On a full disk, leaves room in the reserve for what
/// delivery stores later, such as the note that the batch was delivered.
pub(crate) fn write_batch(
    disk: &dyn Disk,
    dir: &Path,
    name: &str,
    bytes: &[u8],
) -> Result<(), Error> {
    write_for(disk, dir, name, bytes, ReserveUse::MoreBatches)
}

/// Writes half of a split batch as [`write_atomically`] does. Pending batches may have filled their
/// part of the reserve. The halves may exceed that part: otherwise no rejected batch could be split
/// while the disk is full.
pub(crate) fn write_half_batch(
    disk: &dyn Disk,
    dir: &Path,
    name: &str,
    bytes: &[u8],
) -> Result<(), Error> {
    write_for(disk, dir, name, bytes, ReserveUse::Batch)
}

fn write_for(
    disk: &dyn Disk,
    dir: &Path,
    name: &str,
    bytes: &[u8],
    purpose: ReserveUse,
) -> Result<(), Error> {
    let path = dir.join(name);
    let file = ReserveFile::new(&path);
    let failed = |error| Error::new("write", &path, error);
    if file.is_in_reserve(disk).map_err(failed)? {
        return file.store(disk, bytes, purpose).map_err(failed);
    }
    match data_dir::write_atomically(disk, dir, name, bytes) {
        Err(error) if error.is_full() => file.store(disk, bytes, purpose).map_err(|_| error),
        placed => placed,
    }
}

/// Returns the content of a file from the reserve; `None` if the reserve does not have the file.
pub(crate) fn held(disk: &dyn Disk, path: &Path) -> io::Result<Option<Vec<u8>>> {
    let file = ReserveFile::new(path);
    let contents = file.reserve.read(disk)?;
    Ok(contents.file(&file.key).map(<[u8]>::to_vec))
}

/// Returns the content of a file; `None` if the file is longer than any that spool writes.
pub(crate) fn read_bounded(disk: &dyn Disk, path: &Path) -> io::Result<Option<Vec<u8>>> {
    match held(disk, path)? {
        Some(bytes) => Ok(Some(bytes)),
        None => data_dir::read_bounded(disk, path),
    }
}

/// True if the path exists on the disk or in the reserve. An error is returned and does not count
/// as absence.
pub(crate) fn exists(disk: &dyn Disk, path: &Path) -> io::Result<bool> {
    Ok(disk.exists(path)? || ReserveFile::new(path).is_in_reserve(disk)?)
}

/// Removes a file from the disk and from the reserve. Fails if neither has the file.
pub(crate) fn remove(disk: &dyn Disk, path: &Path) -> io::Result<()> {
    let file = ReserveFile::new(path);
    if !file.is_in_reserve(disk)? {
        return disk.remove(path);
    }
    // Remove the file from the disk too: the disk may have an older version, which would count
    // again once the newer version is removed from the reserve. Also remove the temporary file that
    // a failed write may have left.
    for path in [path, &data_dir::temporary_path(path)] {
        match disk.remove(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            removed => {
                removed?;
                disk.sync_dir(path.parent().unwrap_or(Path::new(".")))?;
            }
        }
    }
    file.reserve
        .change(disk, |contents| drop(contents.remove(&file.key)))
}

/// Renames a file and replaces a file at the new path. If either file is in the reserve, or the
/// disk is full, the renamed file is stored in the reserve under its new name.
pub(crate) fn rename(disk: &dyn Disk, from: &Path, to: &Path) -> io::Result<()> {
    let [source, target] = [from, to].map(ReserveFile::new);
    let store_in_reserve = || {
        let too_long = || io::Error::other("the file is longer than any file that spool writes");
        let bytes = read_bounded(disk, from)?.ok_or_else(too_long)?;
        target.store(disk, &bytes, ReserveUse::NewFile)
    };
    if source.is_in_reserve(disk)? || target.is_in_reserve(disk)? {
        store_in_reserve()?;
    } else {
        match data_dir::rename(disk, from, to) {
            // If the reserve fails too, the disk's error is returned: an error of the reserve could
            // be `NotFound`, which callers take for a missing file.
            Err(error) if is_full(&error) => store_in_reserve().map_err(|_| error)?,
            renamed => return renamed,
        }
    }
    remove(disk, from)
}

/// Moves a file into another directory, which may be on another file system, and syncs both
/// directories. A missing file is no error: it was moved before a crash.
pub(crate) fn move_file(disk: &dyn Disk, from: &Path, to: &Path) -> Result<(), Error> {
    match rename(disk, from, to) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            return Err(Error::new("move", from, error));
        }
        _ => {}
    }
    for dir in [to.parent(), from.parent()].into_iter().flatten() {
        disk.sync_dir(dir)
            .map_err(|error| Error::new("sync", dir, error))?;
    }
    Ok(())
}

/// Calls `each` with the names of a directory's files on the disk and in the reserve, in no
/// particular order. A missing directory counts as empty.
pub(crate) fn for_each_file(
    disk: &dyn Disk,
    dir: &Path,
    mut each: impl FnMut(&str),
) -> Result<(), Error> {
    let failed = |error| Error::new("list", dir, error);
    let contents = Reserve::beside(dir).read(disk).map_err(failed)?;
    data_dir::for_each_file(disk, dir, &mut each)?;
    let dir_name = dir.file_name().and_then(|name| name.to_str());
    for key in dir_name.into_iter().flat_map(|dir| contents.keys(dir)) {
        if let Some((_, name)) = key.split_once('/')
            && !disk.exists(&dir.join(name)).map_err(failed)?
        {
            each(name);
        }
    }
    Ok(())
}

/// Moves the files of these directories from the reserve to the disk, as far as the disk has room.
/// The caller must be the only process that may change these files.
pub(crate) fn flush(disk: &dyn Disk, dirs: &[&Path]) -> Result<(), Error> {
    for dir in dirs {
        let (reserve, dir_name) = (Reserve::beside(dir), dir.file_name());
        let failed = |error| Error::new("write to", reserve.path(), error);
        let contents = reserve.read(disk).map_err(failed)?;
        let Some(dir_name) = dir_name.and_then(|name| name.to_str()) else {
            continue;
        };
        for key in contents.keys(dir_name) {
            if let (Some((_, name)), Some(bytes)) = (key.split_once('/'), contents.file(key)) {
                data_dir::write_atomically(disk, dir, name, bytes)?;
                let synced = disk.sync_dir(dir);
                synced.map_err(|error| Error::new("sync", dir, error))?;
                reserve
                    .change(disk, |contents| drop(contents.remove(key)))
                    .map_err(failed)?;
            }
        }
    }
    Ok(())
}

/// A file of a data directory, and its name in the reserve, the space that is preallocated for a
/// full disk.
struct ReserveFile {
    reserve: Reserve,
    /// Directory and file name, such as `spool/{batch}.json`: the name of the file in the reserve.
    key: String,
}

impl ReserveFile {
    fn new(path: &Path) -> Self {
        let dir = path.parent().unwrap_or(Path::new(""));
        let part = |path: &Path| {
            let name = path.file_name().unwrap_or_default();
            name.to_string_lossy().into_owned()
        };
        Self {
            reserve: Reserve::beside(dir),
            key: format!("{}/{}", part(dir), part(path)),
        }
    }

    fn is_in_reserve(&self, disk: &dyn Disk) -> io::Result<bool> {
        Ok(self.reserve.read(disk)?.file(&self.key).is_some())
    }

    /// Stores the file's content in the reserve (space preallocated for a full disk), and syncs the
    /// reserve.
    fn store(&self, disk: &dyn Disk, bytes: &[u8], purpose: ReserveUse) -> io::Result<()> {
        self.reserve.store(disk, &self.key, bytes, purpose)
    }
}
