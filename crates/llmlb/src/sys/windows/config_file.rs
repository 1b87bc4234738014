//! Opens configuration files. Windows protects files by access control lists, which llmlb does not
//! check.

use std::fs::{self, File};
use std::io;
use std::path::Path;
use std::time::SystemTime;

use crate::sys::Exposed;

/// Properties of a configuration file that differ after it was changed or replaced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Signature {
    size: u64,
    modified: Option<SystemTime>,
    created: Option<SystemTime>,
}

/// Returns the signature of a configuration file; `None` if the file does not exist or cannot be
/// reached.
pub(crate) fn signature(path: &Path) -> Option<Signature> {
    let found = fs::metadata(path).ok()?;
    Some(Signature {
        size: found.len(),
        modified: found.modified().ok(),
        created: found.created().ok(),
    })
}

pub(crate) fn open(path: &Path) -> io::Result<Result<File, Exposed>> {
    File::open(path).map(Ok)
}
