//! Code that Linux and macOS share.

pub(crate) mod clock;
pub(crate) mod file;
pub(crate) mod inherit;
pub(crate) mod names;
pub(crate) mod stop_event;
