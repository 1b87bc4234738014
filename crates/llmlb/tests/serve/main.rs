//! `llmlb serve` and `llmlb stop` as users run them: real processes, real sockets, real signals.
//!
//! Every test has a sandbox of its own, and its servers are killed when it ends. `open_streams`
//! has a backend whose streams stay open until a test ends them; the other modules are tests, by topic.

#![expect(
    clippy::expect_used,
    clippy::unwrap_used,
    reason = "helpers fail the test that called them"
)]

#[cfg(target_os = "linux")]
mod network;
mod open_streams;

#[cfg(target_os = "linux")]
mod discovery;
mod forwarding;
mod one_server;
#[cfg(target_os = "linux")]
mod other_machines;
mod routing;
#[cfg(unix)]
mod shared_config;
#[cfg(unix)]
mod signals;
mod status_fields;
mod stopping;
mod streaming;
