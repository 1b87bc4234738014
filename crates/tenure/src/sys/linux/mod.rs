//! Linux: `/proc`, abstract sockets, pidfds.

pub(crate) mod attest;
pub(crate) mod guard;
pub(crate) mod process;
pub(crate) mod signal;
