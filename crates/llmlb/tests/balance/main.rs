//! The balancer when things go wrong, and everything that may pass through it: real processes, real
//! sockets, real signals. (L5, L6, L7, L8)
//!
//! `support`, `process`, `mock`, `http` and `network` are those of the `serve` tests; `backends`
//! starts backends and balancers, `real` backends in processes of their own, `raw` listeners that
//! speak no HTTP unless told to, `h2_client` is a client of HTTP/2. The other modules are tests, by
//! topic.
#![cfg(unix)]
#![expect(
    clippy::expect_used,
    clippy::panic,
    clippy::unwrap_used,
    reason = "helpers fail the test that called them"
)]

#[path = "../serve/http.rs"]
mod http;
#[expect(dead_code, reason = "the `serve` tests use the rest")]
#[path = "../serve/mock.rs"]
mod mock;
#[cfg_attr(
    not(target_os = "linux"),
    expect(dead_code, reason = "tests for Linux use the rest")
)]
#[path = "../serve/process.rs"]
mod process;
#[expect(dead_code, reason = "the `serve` tests use the rest")]
#[path = "../serve/support.rs"]
mod support;

mod backends;
mod h2_client;
mod raw;
mod real;

mod accepted;
mod affinity;
mod answers;
mod backpressure;
mod bad_answers;
mod body_memory;
mod cancelling;
mod changing_models;
mod coming_back;
mod connections;
mod crashing;
mod cut;
// Other systems have other limits.
#[cfg(target_os = "linux")]
mod descriptors;
mod ejecting;
mod endpoints;
mod failing_over;
// Other systems have one loopback address unless told otherwise.
#[cfg(target_os = "linux")]
mod fairness;
// Other systems refuse who comes when the queue is full.
#[cfg(target_os = "linux")]
mod full_backlog;
mod garbage;
mod head_limits;
mod hosts_and_origins;
mod http_two;
mod idle_connections;
mod issued_ids;
mod labels;
mod leaving;
mod limits;
mod long_names;
#[cfg(target_os = "linux")]
mod memory;
#[cfg(target_os = "linux")]
mod memory_bound;
mod model_lists;
mod multipart;
mod names;
mod not_taking;
mod processes;
mod proxies;
mod query_models;
mod queue;
mod request_ids;
mod smuggling;
mod splitting;
mod storm;
mod time_limits;
mod tls;
mod two_names;
mod unread_bodies;
mod uploads;
mod websocket;
mod weights;
