//! Files are protected by access control lists here, which are not looked at.

use std::fs::File;
use std::io;
use std::path::Path;

use crate::sys::Exposed;

pub(crate) fn open(path: &Path) -> io::Result<Result<File, Exposed>> {
    File::open(path).map(Ok)
}
