//! What Linux and macOS have in common.

pub(crate) mod limits;
pub(crate) mod notify;
pub(crate) mod signals;
