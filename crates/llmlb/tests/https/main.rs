//! Tests of `llmlb serve` with TLS: real handshakes, certificates that openssl creates, and their renewal
//! while the server runs. (promises L4, L5, L11)
//!
//! `tunnel` lets clients without TLS use a connection with TLS, so that the clients of the other tests are
//! used here too. The other modules are tests, by topic.
#![cfg(unix)]
#![expect(clippy::unwrap_used, reason = "helpers fail the test that called them")]

mod tunnel;
mod world;

mod client_certificates;
mod files;
mod handshakes;
mod renewal;
mod requests;
mod slow_clients;
mod verbs;
