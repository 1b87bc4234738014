//! The directory for data of programs that stays on this machine.

use std::path::PathBuf;

/// `read` gives a directory that the environment names.
pub(crate) fn data_dir(read: impl Fn(&str) -> Option<PathBuf>) -> Option<PathBuf> {
    read("LOCALAPPDATA").or_else(|| Some(read("USERPROFILE")?.join("AppData").join("Local")))
}
