//! Limits of API keys on real servers: requests and tokens per minute, concurrency, budgets.
//! (promises L9, L11)

#![cfg(target_os = "linux")]
#![expect(clippy::unwrap_used, reason = "helpers fail the test that called them")]

mod world;

mod budgets;
mod dry_run;
mod exact;
mod refusals;
