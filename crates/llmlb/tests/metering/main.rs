//! Every request is written down once, with what it took, whatever its end: real servers, real
//! sockets, real disks. (L9)
//!
//! `records` reads the usage records of a sandbox, `ask` sends requests with an id, `stream` has a
//! backend that sends exactly the bytes a test wants, `small_disk` can be filled. The other modules are
//! tests, by topic.
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

mod ask;
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
