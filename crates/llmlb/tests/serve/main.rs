//! The program as its users meet it: real processes, real sockets, real signals.
//!
//! Every test has a sandbox of its own, and every server that it starts is gone when it ends. `held`
//! has a backend whose streams last as long as a test wants; the other modules are tests, by topic.

#![expect(
    clippy::expect_used,
    clippy::unwrap_used,
    reason = "helpers fail the test that called them"
)]

mod held;
#[cfg(target_os = "linux")]
mod network;

#[cfg(target_os = "linux")]
mod discovery;
mod one_server;
#[cfg(target_os = "linux")]
mod other_machines;
mod passing;
mod routing;
#[cfg(unix)]
mod shared_config;
#[cfg(unix)]
mod signals;
mod stopping;
mod streaming;
