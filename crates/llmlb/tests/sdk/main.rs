//! The official clients, unmodified, against a real server before backends that speak as the real
//! ones do. (L5, L6, L9, L14)
//!
//! Each client has a script with many checks; a script says which of them failed. `backend` is what
//! they talk to in the end, `world` puts the server before it, `tools` finds Python and Node.

#![expect(
    clippy::expect_used,
    clippy::panic,
    clippy::unwrap_used,
    reason = "helpers fail the test that called them"
)]

// What the tests of `serve` use, too; each uses its part of it.
#[path = "../serve/http.rs"]
#[expect(dead_code, reason = "other tests use the rest")]
mod http;
#[path = "../serve/mock.rs"]
#[expect(dead_code, reason = "other tests use the rest")]
mod mock;
#[path = "../serve/process.rs"]
#[expect(dead_code, reason = "other tests use the rest")]
mod process;
#[path = "../serve/support.rs"]
#[expect(dead_code, reason = "other tests use the rest")]
mod support;

mod backend;
#[path = "../metering/ollama_backend.rs"]
mod ollama_backend;
mod tools;
mod world;

mod clients;
