//! Every request is written down once, with what it took, whatever its end: real servers, real
//! sockets, real disks. (L9)
//!
//! `support`, `process`, `mock` and `http` are those of the `serve` tests, `backends`, `raw` and
//! `h2_client` those of `balance`; `backend` is that of `sdk`: it speaks the APIs and counts what it
//! makes. `records` reads what a server wrote down, `ask` sends requests with a name, `stream` has a
//! backend that sends exactly what a test wants, `ollama_backend` is an Ollama, `receiver` takes batches, `small_disk` can be
//! filled. The other modules are tests, by topic.
//!
//! `METERING_REQUESTS` and `METERING_KILLS` are how many requests the storm has (500) and how often
//! the server is killed on the way (2), `METERING_SEED` which storm it is. `scripts/prove-metering`
//! runs the long version.

#![cfg(target_os = "linux")]
#![expect(
    clippy::expect_used,
    clippy::panic,
    clippy::unwrap_used,
    reason = "helpers fail the test that called them"
)]

#[path = "../sdk/backend/mod.rs"]
mod backend;
#[expect(dead_code, reason = "the `balance` tests use the rest")]
#[path = "../balance/backends.rs"]
mod backends;
#[expect(dead_code, reason = "the `balance` tests use the rest")]
#[path = "../balance/h2_client.rs"]
mod h2_client;
#[path = "../serve/http.rs"]
mod http;
#[expect(dead_code, reason = "the `serve` tests use the rest")]
#[path = "../serve/mock.rs"]
mod mock;
#[path = "../serve/process.rs"]
mod process;
#[expect(dead_code, reason = "the `faults` tests use the rest")]
#[path = "../faults/random.rs"]
mod random;
#[expect(dead_code, reason = "the `balance` tests use the rest")]
#[path = "../balance/raw.rs"]
mod raw;
#[expect(dead_code, reason = "the `serve` tests use the rest")]
#[path = "../serve/support.rs"]
mod support;

mod ask;
mod ollama_backend;
mod receiver;
mod records;
mod small_disk;
mod stream;

mod answers;
mod estimates;
mod failing;
mod failing_disk;
mod full_disk;
mod hiding;
mod leaving;
mod log;
mod names;
mod nothing_to_count;
mod objecting;
mod ollama;
mod order;
mod refused;
mod secrets;
mod storm;
mod telling;
mod websocket;
