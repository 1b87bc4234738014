//! The balancer when things go wrong, and everything that may pass through it: real processes, real
//! sockets, real signals. (L5, L6, L7, L8)
//!
//! `real` starts backends in processes of their own. The other modules are tests, by topic.
#![cfg(unix)]
#![expect(
    clippy::expect_used,
    clippy::unwrap_used,
    reason = "helpers fail the test that called them"
)]

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
