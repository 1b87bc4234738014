//! Linux.

pub(super) mod c_allocator;
pub(super) mod data_dir;
pub(crate) mod hangup;
pub(crate) mod listen;
pub(super) mod listener;
pub(super) mod memory;
pub(super) mod mounts;
pub(super) mod port_owner;
