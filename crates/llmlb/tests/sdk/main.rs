//! The official clients, unmodified, against a real server in front of backends that implement the
//! same APIs as real ones. (promises L5, L6, L9, L14)
//!
//! Each client has a script with many checks, which prints the checks that failed. `world` is the
//! server with its backends, `tools` finds Python and Node.

#![expect(clippy::unwrap_used, reason = "helpers fail the test that called them")]

mod tools;
mod world;

mod clients;
