//! Windows: mandatory byte-range locks, share modes, process handles, events, jobs.

pub(crate) mod file;
pub(crate) mod guard;
mod handle;
pub(crate) mod inherit;
pub(crate) mod process;
pub(crate) mod signal;
