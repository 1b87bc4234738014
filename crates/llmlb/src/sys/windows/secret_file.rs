//! Opens files that contain a secret. Windows protects files by access control lists, which llmlb
//! does not check.

use std::fs::File;
use std::io;
use std::path::Path;

pub(crate) fn open(path: &Path) -> io::Result<(File, Option<u32>)> {
    let file = File::open(path)?;
    if !file.metadata()?.is_file() {
        return Err(io::Error::other("the path does not name a regular file"));
    }
    Ok((file, None))
}
