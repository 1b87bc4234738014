//! The directory for data of programs.

use std::path::PathBuf;

/// `read` gives a directory that the environment names.
pub(crate) fn data_dir(read: impl Fn(&str) -> Option<PathBuf>) -> Option<PathBuf> {
    Some(read("HOME")?.join("Library/Application Support"))
}
