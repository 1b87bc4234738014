//! Reasons why a configuration file is not trusted.

use std::path::PathBuf;

/// Reason why another user could have written or replaced a configuration file, so that the file is
/// rejected.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(
    not(unix),
    expect(dead_code, reason = "only Unix has owners and modes")
)]
pub(crate) enum Exposed {
    /// The file belongs to another user, who could write it.
    Owner(String),
    /// Every user may write the file.
    Others,
    /// A group with other members may write the file. The number is the gid of the group.
    Group(u32),
    /// Every user may replace the file, because every user may write its directory.
    Directory(PathBuf),
    /// The file was replaced by another one while it was opened, so the checked file may not be the
    /// one that was read.
    Replaced,
}
