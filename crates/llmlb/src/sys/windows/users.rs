//! Users, for people to read.

/// Users have no numbers here.
pub(crate) fn shown(uid: u32) -> String {
    format!("user {uid}")
}
