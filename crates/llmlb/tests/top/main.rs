//! Snapshots of a running server, and `llmlb top`, which shows them.
//! (promise L13)

#![cfg(target_os = "linux")]
#![expect(clippy::unwrap_used, reason = "helpers fail the test that called them")]

mod world;

mod books;
mod command;
mod events;
mod snapshot;
mod terminal;
