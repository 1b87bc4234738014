//! Whole files of the data directory: on the disk or, if that was too full for them, in the reserve.
//!
//! A file that the reserve holds counts, whatever the disk has under its name, until it is written
//! to the disk by [`flush`].

use std::io;
use std::path::Path;

use crate::data_dir;
use crate::disk::Disk;
use crate::error::{Error, is_full};
use crate::reserve::{Reserve, ReserveUse};

/// Puts a whole file in place: complete or absent, whatever happens. On a full disk it is stored in
/// the reserve. Its name is on the disk once the directory is synced.
pub(crate) fn write_atomically(
    disk: &dyn Disk,
    dir: &Path,
    name: &str,
    bytes: &[u8],
) -> Result<(), Error> {
    write_for(disk, dir, name, bytes, ReserveUse::NewFile)
}

/// The same for a batch, which leaves room in the reserve for what is noted about it.
pub(crate) fn write_batch(
    disk: &dyn Disk,
    dir: &Path,
    name: &str,
    bytes: &[u8],
) -> Result<(), Error> {
    write_for(disk, dir, name, bytes, ReserveUse::MoreBatches)
}

/// The same for half of a batch that is split. Batches that wait may have filled their part of the
/// reserve: their halves must still fit, or no rejected batch would leave a full disk.
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
    what: ReserveUse,
) -> Result<(), Error> {
    let path = dir.join(name);
    let file = ReserveFile::new(&path);
    let failed = |error| Error::new("write", &path, error);
    if file.is_held(disk).map_err(failed)? {
        return file.hold(disk, bytes, what).map_err(failed);
    }
    match data_dir::write_atomically(disk, dir, name, bytes) {
        Err(error) if error.is_full() => file.hold(disk, bytes, what).map_err(|_| error),
        placed => placed,
    }
}

/// The content of a file that the reserve holds.
pub(crate) fn held(disk: &dyn Disk, path: &Path) -> io::Result<Option<Vec<u8>>> {
    let file = ReserveFile::new(path);
    let held = file.reserve.read(disk)?;
    Ok(held.file(&file.key).map(<[u8]>::to_vec))
}

/// The content of a file, unless it is longer than anything we write.
pub(crate) fn read_bounded(disk: &dyn Disk, path: &Path) -> io::Result<Option<Vec<u8>>> {
    match held(disk, path)? {
        Some(bytes) => Ok(Some(bytes)),
        None => data_dir::read_bounded(disk, path),
    }
}

/// True if something has this name. An error is not taken for "no".
pub(crate) fn exists(disk: &dyn Disk, path: &Path) -> io::Result<bool> {
    Ok(disk.exists(path)? || ReserveFile::new(path).is_held(disk)?)
}

/// Removes a file. It is an error if there is none.
pub(crate) fn remove(disk: &dyn Disk, path: &Path) -> io::Result<()> {
    let file = ReserveFile::new(path);
    if !file.is_held(disk)? {
        return disk.remove(path);
    }
    // An older version must not come back once the reserve has forgotten the newer one. The disk that
    // had no room for the file may have kept half of it, too.
    for path in [path, &data_dir::half_of(path)] {
        match disk.remove(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            removed => {
                removed?;
                disk.sync_dir(path.parent().unwrap_or(Path::new(".")))?;
            }
        }
    }
    file.reserve
        .change(disk, |held| drop(held.remove(&file.key)))
}

/// Gives a file another name, in place of whatever has that name.
pub(crate) fn rename(disk: &dyn Disk, from: &Path, to: &Path) -> io::Result<()> {
    let [source, target] = [from, to].map(ReserveFile::new);
    let hold = || {
        let too_long = || io::Error::other("longer than anything we write");
        let bytes = read_bounded(disk, from)?.ok_or_else(too_long)?;
        target.hold(disk, &bytes, ReserveUse::NewFile)
    };
    if source.is_held(disk)? || target.is_held(disk)? {
        hold()?;
    } else {
        match data_dir::rename(disk, from, to) {
            // That there is no reserve must not look as if there were no such file.
            Err(error) if is_full(&error) => hold().map_err(|_| error)?,
            renamed => return renamed,
        }
    }
    remove(disk, from)
}

/// Moves a file into another directory, which may be on another file system. On the disk when this
/// returns. A file that is gone was moved before a crash.
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

/// Calls `each` with the files of a directory, in no order. A directory that is not there has none.
pub(crate) fn for_each_file(
    disk: &dyn Disk,
    dir: &Path,
    mut each: impl FnMut(&str),
) -> Result<(), Error> {
    let failed = |error| Error::new("list", dir, error);
    let held = Reserve::beside(dir).read(disk).map_err(failed)?;
    data_dir::for_each_file(disk, dir, &mut each)?;
    let dir_name = dir.file_name().and_then(|name| name.to_str());
    for key in dir_name.into_iter().flat_map(|dir| held.keys(dir)) {
        if let Some((_, name)) = key.split_once('/')
            && !disk.exists(&dir.join(name)).map_err(failed)?
        {
            each(name);
        }
    }
    Ok(())
}

/// Writes the files of these directories that the reserve holds to the disk, as far as there is room.
/// The caller is the only one who may change them.
pub(crate) fn flush(disk: &dyn Disk, dirs: &[&Path]) -> Result<(), Error> {
    for dir in dirs {
        let (reserve, dir_name) = (Reserve::beside(dir), dir.file_name());
        let failed = |error| Error::new("write to", reserve.path(), error);
        let held = reserve.read(disk).map_err(failed)?;
        let Some(dir_name) = dir_name.and_then(|name| name.to_str()) else {
            continue;
        };
        for key in held.keys(dir_name) {
            if let (Some((_, name)), Some(bytes)) = (key.split_once('/'), held.file(key)) {
                data_dir::write_atomically(disk, dir, name, bytes)?;
                let synced = disk.sync_dir(dir);
                synced.map_err(|error| Error::new("sync", dir, error))?;
                reserve
                    .change(disk, |held| drop(held.remove(key)))
                    .map_err(failed)?;
            }
        }
    }
    Ok(())
}

/// A file's name in the reserve of its data directory.
struct ReserveFile {
    reserve: Reserve,
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

    fn is_held(&self, disk: &dyn Disk) -> io::Result<bool> {
        Ok(self.reserve.read(disk)?.file(&self.key).is_some())
    }

    /// Stores the file in the reserve. On the disk when this returns.
    fn hold(&self, disk: &dyn Disk, bytes: &[u8], what: ReserveUse) -> io::Result<()> {
        self.reserve.hold(disk, &self.key, bytes, what)
    }
}
