//! macOS: no way to ask who has a `flock`, no abstract sockets, no pidfds.

pub(crate) mod guard;
pub(crate) mod process;
pub(crate) mod signal;
