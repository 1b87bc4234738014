//! Functions that Linux and macOS share: lock files, names of users, the clock, and locks that a
//! command inherits.

pub(crate) mod clock;
pub(crate) mod file;
pub(crate) mod inherit;
pub(crate) mod names;
pub(crate) mod stop_event;
