//! Linux: `/proc`, abstract sockets, pidfds.

pub(crate) mod attest;
pub(crate) mod guard;
mod guard_name;
mod proc;
pub(crate) mod process;
pub(crate) mod signal;
mod socket_owner;
mod waiter;
