//! The program as its users meet it: real processes, real sockets, real signals.
//!
//! Every test has a directory of its own, and every server that it starts is gone when it ends.
//! `support` starts servers, `mock` is a backend that does what a test wants, `http` a client that
//! sees every byte; the other modules are tests, by topic.

#![expect(
    clippy::expect_used,
    clippy::panic,
    clippy::unwrap_used,
    reason = "helpers fail the test that called them"
)]

mod held;
mod http;
mod mock;
#[cfg(target_os = "linux")]
mod network;
mod process;
mod support;

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
