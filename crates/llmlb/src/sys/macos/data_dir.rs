//! Base directory in which programs store data on macOS.

use std::path::PathBuf;

/// Returns the directory in which programs of this user store data; llmlb's default data directory
/// is its subdirectory `llmlb`. `read` returns the directory that an environment variable names.
pub(crate) fn data_dir(read: impl Fn(&str) -> Option<PathBuf>) -> Option<PathBuf> {
    Some(read("HOME")?.join("Library/Application Support"))
}
