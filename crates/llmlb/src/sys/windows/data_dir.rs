//! Base directory for data of programs that stays on this machine.

use std::path::PathBuf;

/// Returns the base directory. `read` returns the directory that an environment variable names.
pub(crate) fn data_dir(read: impl Fn(&str) -> Option<PathBuf>) -> Option<PathBuf> {
    read("LOCALAPPDATA").or_else(|| Some(read("USERPROFILE")?.join("AppData").join("Local")))
}
