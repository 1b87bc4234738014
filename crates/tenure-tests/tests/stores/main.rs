//! Tests of each store against its real server, through the public API. [`conformance`] has the same
//! checks for all stores, the one of lock files included.
#![cfg(unix)]
#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "an error in a helper must fail its test"
)]

mod conformance;
mod hostile;
mod under_test;
mod without_server;

/// Path of the `owner` program, which acquires a key and executes the requests that a test writes to
/// its stdin.
const OWNER: &str = env!("CARGO_BIN_EXE_owner");
/// Path of the `torture` program, whose processes compete for a key.
const TORTURE: &str = env!("CARGO_BIN_EXE_torture");
