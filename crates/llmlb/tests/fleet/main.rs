//! Several servers and commands that share a data directory, a real Redis as their lease store, and
//! real signals. (promises S11, L6)

#![cfg(target_os = "linux")]
#![expect(clippy::unwrap_used, reason = "helpers fail the test that called them")]

mod redis_server;
mod world;

mod issued_ids;
mod lease;
mod limits;
mod locks;
