//! Functions for Linux, which proves owners by `/proc`, guards against deletion by abstract
//! sockets, and signals through pidfds.

pub(crate) mod attest;
pub(crate) mod deletion_guard;
mod proc;
pub(crate) mod process;
pub(crate) mod signal;
mod socket_name;
mod socket_owner;
mod waiter;
