//! Windows: mandatory byte-range locks, share modes, process handles, events, jobs.

pub(crate) mod clock;
pub(crate) mod deletion_guard;
pub(crate) mod file;
mod handle;
pub(crate) mod inherit;
pub(crate) mod process;
pub(crate) mod signal;
