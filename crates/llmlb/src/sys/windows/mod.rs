//! Windows.

pub(crate) mod bus_error;
pub(crate) mod config_file;
pub(super) mod data_dir;
pub(crate) mod data_file;
pub(super) mod disk;
pub(super) mod host;
pub(crate) mod limits;
pub(crate) mod listen;
pub(super) mod listener;
pub(crate) mod notify;
pub(super) mod port_owner;
pub(crate) mod secret_file;
pub(crate) mod signals;
pub(crate) mod users;
