//! Every request has one usage record, whatever its outcome: tests with real servers, real
//! sockets, real disks. (promise L9)
//!
//! `records` reads the usage records of a sandbox, `requests` sends requests with an id, `stream` has a
//! backend that sends the bytes of a script, `small_disk` has a disk that can be filled. The others are
//! tests, by topic.
//!
//! `METERING_REQUESTS` is the number of requests of the storm (500), `METERING_KILLS` the number of
//! kills of the server during the storm (2), `METERING_SEED` the seed. `scripts/prove-metering`
//! runs the long version.

#![cfg(target_os = "linux")]
#![expect(
    clippy::expect_used,
    clippy::panic,
    clippy::unwrap_used,
    reason = "helpers fail the test that called them"
)]

mod records;
mod requests;
mod small_disk;
mod stream;

mod disconnects;
mod estimates;
mod failed_attempts;
mod failing_disk;
mod full_disk;
mod hidden_usage;
mod instance;
mod interrupted;
mod log;
mod model_names;
mod ollama;
mod order;
mod planted_secrets;
mod refused;
mod rejected_option;
mod responses;
mod secrets;
mod storm;
mod usage_reports;
mod websocket;
mod without_tokens;
