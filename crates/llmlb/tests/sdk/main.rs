//! The official clients, unmodified, against a real server before backends that speak as the real
//! ones do. (L5, L6, L9, L14)
//!
//! Each client has a script with many checks; a script says which of them failed. `world` is a
//! server in front of backends that implement the APIs, `tools` finds Python and Node.

#![expect(clippy::unwrap_used, reason = "helpers fail the test that called them")]

mod tools;
mod world;

mod clients;
