//! Opening of files that contain a secret. Windows protects files by access control lists, which are not
//! checked.

use std::fs::File;
use std::io;
use std::path::Path;

pub(crate) fn open(path: &Path) -> io::Result<(File, Option<u32>)> {
    let file = File::open(path)?;
    if !file.metadata()?.is_file() {
        return Err(io::Error::other("it is not a regular file"));
    }
    Ok((file, None))
}
