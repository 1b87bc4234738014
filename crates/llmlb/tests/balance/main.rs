//! Tests of `llmlb serve` with real processes, sockets and signals: failing backends and clients,
//! limits, and everything that is forwarded. (promises L5, L6, L7, L8)
//!
//! `backend_process` starts backends in processes of their own. The other modules are tests, by topic.
#![cfg(unix)]
#![expect(
    clippy::expect_used,
    clippy::unwrap_used,
    reason = "helpers fail the test that called them"
)]

mod backend_process;

mod accepted;
mod affinity;
mod aliases;
mod ambiguous_fields;
mod ambiguous_responses;
mod backpressure;
mod body_memory;
mod cancellation;
mod changing_models;
mod client_disconnect;
mod connections;
mod crashing;
mod cut_responses;
// Linux only: limits of open files work differently on other systems.
#[cfg(target_os = "linux")]
mod descriptors;
mod ejection;
mod endpoints;
mod failing_responses;
// Linux only: clients need different source addresses, but other systems have a single loopback
// address by default.
#[cfg(target_os = "linux")]
mod fairness;
// Linux only: the tests need connection attempts that block while the listen backlog is full, but
// other systems refuse them.
#[cfg(target_os = "linux")]
mod full_backlog;
mod garbage;
mod head_limits;
mod hosts_and_origins;
mod http2;
mod idle_connections;
mod issued_ids;
mod labels;
mod limits;
mod long_texts;
#[cfg(target_os = "linux")]
mod memory;
#[cfg(target_os = "linux")]
mod memory_bound;
mod model_lists;
mod multipart;
mod processes;
mod proxies;
mod query_models;
mod queue;
mod recovery;
mod request_ids;
mod responses;
mod retries;
mod smuggling;
mod storm;
mod time_limits;
mod tls;
mod unread_bodies;
mod unread_responses;
mod uploads;
mod websocket;
mod weights;
