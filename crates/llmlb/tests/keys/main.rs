//! Tests of API keys with real processes: authentication of clients, `llmlb key`, and keys in
//! `llmlb.toml`. (promise L11)
#![cfg(unix)]
#![expect(clippy::unwrap_used, reason = "helpers fail the test that called them")]

mod support;

mod attacks;
mod authentication;
mod commands;
mod models;
#[cfg(target_os = "linux")]
mod public;
mod secrets;
#[cfg(target_os = "linux")]
mod two_users;
mod websocket;
