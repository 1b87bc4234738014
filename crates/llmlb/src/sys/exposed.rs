//! Why a file is not trusted.

use std::path::PathBuf;

/// Who else could have written a file.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(
    not(unix),
    expect(dead_code, reason = "only Unix has owners and modes")
)]
pub(crate) enum Exposed {
    /// Its owner, another user.
    Owner(String),
    /// Every user.
    Others,
    /// A group that has other members, by number.
    Group(u32),
    /// Every user, by replacing it in this directory.
    Directory(PathBuf),
    /// It was replaced while it was opened.
    Replaced,
}
