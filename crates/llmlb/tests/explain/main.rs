//! Explanations of a request after its end: reasons, times, attempts. (promises L9, L13)

#![cfg(target_os = "linux")]
#![expect(
    clippy::expect_used,
    clippy::panic,
    clippy::unwrap_used,
    reason = "helpers fail the test that called them"
)]

mod support;

mod command;
mod header;
mod log;
#[cfg(feature = "otlp")]
mod otlp;
mod pages;
mod reasons;
mod traces;
