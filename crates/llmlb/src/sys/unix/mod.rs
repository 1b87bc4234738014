//! Code that Linux and macOS share.

pub(crate) mod bus_error;
pub(crate) mod config_file;
pub(super) mod cpu;
pub(crate) mod data_file;
pub(super) mod disk;
pub(super) mod host;
pub(crate) mod limits;
pub(crate) mod notify;
pub(crate) mod secret_file;
pub(crate) mod signals;
pub(crate) mod users;
