//! Base directory for data of programs.

use std::path::PathBuf;

/// Returns the base directory. `read` returns the directory that an environment variable names.
pub(crate) fn data_dir(read: impl Fn(&str) -> Option<PathBuf>) -> Option<PathBuf> {
    Some(read("HOME")?.join("Library/Application Support"))
}
