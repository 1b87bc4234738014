//! Files in a data directory. Who may read them is inherited from the directory.

use std::fs::{File, OpenOptions};
use std::io;
use std::path::Path;

/// Opens a file to read it.
pub(crate) fn open(path: &Path) -> io::Result<File> {
    File::open(path)
}

/// Opens a file to append to it, and creates it if it is missing.
pub(crate) fn append(path: &Path) -> io::Result<File> {
    OpenOptions::new().append(true).create(true).open(path)
}
