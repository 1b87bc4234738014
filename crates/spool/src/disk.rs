//! The few acts on a disk. Everything this crate reads or writes goes through them, so that a test
//! can fail or crash at every single one.

use std::ffi::OsStr;
use std::fmt;
use std::fs::File;
use std::io::{self, Read, Write};
use std::path::Path;

use crate::sys;

/// A disk, or what a test makes of one.
pub(crate) trait Disk: fmt::Debug + Send + Sync {
    /// Makes a directory and those above it, where they are missing, on the disk.
    fn make_dir(&self, dir: &Path) -> io::Result<()>;
    /// Makes a new file for this user alone. It is an error if there is one.
    fn create(&self, path: &Path) -> io::Result<File>;
    /// Writes to a place in a file.
    fn write_at(&self, file: &File, at: u64, bytes: &[u8]) -> io::Result<()>;
    /// Adds bytes to the end of a file that was opened for that, or has just been made.
    fn append(&self, file: &File, bytes: &[u8]) -> io::Result<()>;
    /// Waits until a file's content is on the disk.
    fn sync(&self, file: &File) -> io::Result<()>;
    /// Waits until the names in a directory are on the disk.
    fn sync_dir(&self, dir: &Path) -> io::Result<()>;
    /// Gives a file another name, in place of whatever has that name.
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()>;
    /// Removes a file.
    fn remove(&self, path: &Path) -> io::Result<()>;
    /// Cuts the end of a file off.
    fn truncate(&self, file: &File, length: u64) -> io::Result<()>;
    /// Opens a file to read it. Anything but a regular file is an error, and is not waited for.
    fn open(&self, path: &Path) -> io::Result<File> {
        sys::open(path, false)
    }
    /// Opens a file to read and write it. Anything but a regular file is an error, and is not waited
    /// for.
    fn open_to_write(&self, path: &Path) -> io::Result<File> {
        sys::open(path, true)
    }
    /// Reads the next bytes of an open file. 0: its end.
    fn read(&self, mut file: &File, into: &mut [u8]) -> io::Result<usize> {
        file.read(into)
    }
    /// Calls `each` with every name in a directory, in no order, and whether it is a regular file.
    fn list(&self, dir: &Path, each: &mut dyn FnMut(&OsStr, bool)) -> io::Result<()> {
        for file in std::fs::read_dir(dir)? {
            let file = file?;
            let is_file = file.file_type().is_ok_and(|kind| kind.is_file());
            each(&file.file_name(), is_file);
        }
        Ok(())
    }
    /// True if something has this name, whatever it is. An error is not taken for "no".
    fn exists(&self, path: &Path) -> io::Result<bool> {
        match path.symlink_metadata() {
            Ok(_) => Ok(true),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
            Err(error) => Err(error),
        }
    }
    /// Tells processes apart. What one of them remembers of its files is nothing that another one
    /// knows: a test can end one and begin another.
    fn process(&self) -> usize {
        0
    }
    /// Called before something is written in another way: the record of a lock. A test can crash
    /// here, too.
    fn before_record(&self) -> io::Result<()> {
        Ok(())
    }
}

/// An open file whose content is read through the seam.
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

/// The disk of this machine.
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
            // Somebody else was quicker.
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists && dir.is_dir() => {}
            made => made?,
        }
        // What is in it is as safe as its own name.
        let synced = self.sync_dir(above.unwrap_or(Path::new(".")));
        if synced.is_err() {
            // It is made and synced again when it is needed next.
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
