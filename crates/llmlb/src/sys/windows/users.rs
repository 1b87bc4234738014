//! Names of users, for messages about files and ports of other users.

use std::path::Path;

/// Returns `None`, because the owner of a file is not determined on Windows.
pub(crate) fn owner_of(_path: &Path) -> Option<String> {
    None
}

/// Formats the uid of a Unix user for a message. Windows has no uids; the function exists because
/// code for all systems calls it.
pub(crate) fn shown(uid: u32) -> String {
    format!("user {uid}")
}
