//! Functions for macOS. Its kernel does not report which process has a `flock`, and has no abstract
//! sockets and no pidfds, so some proofs are weaker than on Linux.

pub(crate) mod deletion_guard;
pub(crate) mod process;
pub(crate) mod signal;
