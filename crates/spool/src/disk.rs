//! Disk operations. This crate reads and writes files only through [`Disk`], so that a test can
//! inject an error or a crash at every operation.

use std::ffi::OsStr;
use std::fmt;
use std::fs::File;
use std::io::{self, Read, Write};
use std::path::Path;

use crate::sys;

/// Operations on files and directories. Tests implement it with disks that fail or crash.
pub(crate) trait Disk: fmt::Debug + Send + Sync {
    /// Creates a directory and its missing parents, and syncs their names.
    fn make_dir(&self, dir: &Path) -> io::Result<()>;
    /// Creates a file that only this user may access. Fails if the path exists.
    fn create(&self, path: &Path) -> io::Result<File>;
    /// Writes bytes at an offset of a file.
    fn write_at(&self, file: &File, at: u64, bytes: &[u8]) -> io::Result<()>;
    /// Appends bytes to a file that was opened for appending or has just been created.
    fn append(&self, file: &File, bytes: &[u8]) -> io::Result<()>;
    /// Syncs a file's content.
    fn sync(&self, file: &File) -> io::Result<()>;
    /// Syncs a directory, so that the names of its files survive a power failure.
    fn sync_dir(&self, dir: &Path) -> io::Result<()>;
    /// Renames a file and replaces the file at the new path, if there is one.
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()>;
    /// Removes a file.
    fn remove(&self, path: &Path) -> io::Result<()>;
    /// Sets the length of a file.
    fn truncate(&self, file: &File, length: u64) -> io::Result<()>;
    /// Opens a file for reading. Fails at once for anything but a regular file: opening a named
    /// pipe would block.
    fn open(&self, path: &Path) -> io::Result<File> {
        sys::open(path, false)
    }
    /// Opens a file for reading and writing. Fails at once for anything but a regular file.
    fn open_to_write(&self, path: &Path) -> io::Result<File> {
        sys::open(path, true)
    }
    /// Reads the next bytes of an open file. Returns 0 at its end.
    fn read(&self, mut file: &File, into: &mut [u8]) -> io::Result<usize> {
        file.read(into)
    }
    /// Calls `each` with every name in a directory, in no particular order, and with `true` for a
    /// regular file.
    fn list(&self, dir: &Path, each: &mut dyn FnMut(&OsStr, bool)) -> io::Result<()> {
        for file in std::fs::read_dir(dir)? {
            let file = file?;
            let is_file = file.file_type().is_ok_and(|kind| kind.is_file());
            each(&file.file_name(), is_file);
        }
        Ok(())
    }
    /// True if the path exists, as a file of any type. An error is returned and does not count as
    /// absence.
    fn exists(&self, path: &Path) -> io::Result<bool> {
        match path.symlink_metadata() {
            Ok(_) => Ok(true),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
            Err(error) => Err(error),
        }
    }
    /// Identifies the process in statics that cache the state of files. A test that simulates a
    /// restart returns another number, so that the cache of the process before is not used.
    fn process(&self) -> usize {
        0
    }
    /// Called before a lock record is written, which tenure does without this trait. A test can
    /// inject a crash here.
    fn before_record(&self) -> io::Result<()> {
        Ok(())
    }
    /// Called before each batch is sent. A disk with a fence fails here if the fence was lost.
    fn before_send(&self) -> io::Result<()> {
        Ok(())
    }
}

/// Reader of an open file that reads through [`Disk`].
#[derive(Debug)]
pub(crate) struct DiskReader<'a> {
    disk: &'a dyn Disk,
    file: File,
}

impl<'a> DiskReader<'a> {
    pub(crate) fn open(disk: &'a dyn Disk, path: &Path) -> io::Result<Self> {
        let file = disk.open(path)?;
        Ok(Self { disk, file })
    }

    pub(crate) fn file(&self) -> &File {
        &self.file
    }
}

impl Read for DiskReader<'_> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        self.disk.read(&self.file, into)
    }
}

#[derive(Debug)]
pub(crate) struct RealDisk;

impl Disk for RealDisk {
    fn make_dir(&self, dir: &Path) -> io::Result<()> {
        if dir.is_dir() {
            return Ok(());
        }
        let above = dir.parent().filter(|above| !above.as_os_str().is_empty());
        if let Some(above) = above {
            self.make_dir(above)?;
        }
        match sys::make_dir(dir) {
            // Another process has created the directory since the check above. The directory
            // exists, so this is no error.
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists && dir.is_dir() => {}
            made => made?,
        }
        // Sync the parent directory. Otherwise a power failure could lose the new directory's name,
        // and with it the files in the directory.
        let synced = self.sync_dir(above.unwrap_or(Path::new(".")));
        if synced.is_err() {
            // Remove the new directory if the sync of its name failed. Otherwise the next call
            // would find the directory and skip the sync, and a power failure could lose the
            // directory with its files.
            let _ = std::fs::remove_dir(dir);
        }
        synced
    }

    fn create(&self, path: &Path) -> io::Result<File> {
        sys::create(path)
    }

    fn write_at(&self, file: &File, at: u64, bytes: &[u8]) -> io::Result<()> {
        sys::write_at(file, at, bytes)
    }

    fn append(&self, mut file: &File, bytes: &[u8]) -> io::Result<()> {
        file.write_all(bytes)
    }

    fn sync(&self, file: &File) -> io::Result<()> {
        file.sync_data()
    }

    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        sys::sync_dir(dir)
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        std::fs::rename(from, to)
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        std::fs::remove_file(path)
    }

    fn truncate(&self, file: &File, length: u64) -> io::Result<()> {
        file.set_len(length)
    }
}
