//! Changes of the configuration of a running server. (promise L12)
//!
//! Real processes and files: each test changes `llmlb.toml` of its sandbox. `server.rs` has the server and
//! waits for reloads; the other modules are tests, by topic.

#![expect(clippy::unwrap_used, reason = "helpers fail the test that called them")]

mod server;

mod backends;
mod files;
mod refused;
mod requests;
mod settings;
#[cfg(target_os = "linux")]
mod signals;
mod storm;
