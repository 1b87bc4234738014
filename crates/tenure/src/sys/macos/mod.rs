//! macOS: the kernel does not report which process has a `flock`, and has no abstract sockets and
//! no pidfds.

pub(crate) mod deletion_guard;
pub(crate) mod process;
pub(crate) mod signal;
