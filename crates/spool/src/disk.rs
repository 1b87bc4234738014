//! The few acts that change a disk. Everything this crate writes goes through them, so that a test
//! can fail or crash at every single one.

use std::fmt;
use std::fs::File;
use std::io::{self, Write};
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
    /// Called before something is written in another way: the record of a lock. A test can crash
    /// here, too.
    fn before_record(&self) -> io::Result<()> {
        Ok(())
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
        self.sync_dir(above.unwrap_or(Path::new(".")))
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
