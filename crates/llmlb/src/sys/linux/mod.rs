//! Linux.

pub(crate) mod listen;
pub(super) mod port_owner;
