//! Functions for Windows, which uses mandatory byte-range locks and share modes for lock files, and
//! handles, events and jobs for processes.

pub(crate) mod clock;
pub(crate) mod deletion_guard;
pub(crate) mod file;
mod handle;
pub(crate) mod inherit;
pub(crate) mod process;
pub(crate) mod signal;
