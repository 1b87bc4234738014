//! Names of users for messages.

use std::path::Path;

/// Returns `None`: the owner of a file is not determined on Windows.
pub(crate) fn owner_of(_path: &Path) -> Option<String> {
    None
}

/// Formats a user's number. Windows has none; Unix code paths share this signature.
pub(crate) fn shown(uid: u32) -> String {
    format!("user {uid}")
}
