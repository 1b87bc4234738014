//! A load balancer for LLM servers, with at most one instance per port.
//!
//! The command `llmlb` calls [`cli::run`]. Other programs can use [`lock`]: it reports whether a
//! server runs on a port, and prevents a second one from starting.

mod app;
mod atomic_duration;
mod backend_id;
mod balance;
mod body_deadline;
mod body_edit;
pub mod cli;
mod client_network;
mod config;
mod contention;
mod dashboard;
mod data_dir;
mod demo;
mod descriptors;
#[cfg(any(test, fuzzing))]
mod dice;
mod dropped_headers;
mod endpoint;
mod episode;
mod exporter;
mod fleet;
mod forward;
#[cfg(any(test, fuzzing))]
#[doc(hidden)]
pub mod fuzz;
mod headers;
mod health;
mod issued_ids;
mod issuer_file;
mod issuer_store;
mod json;
mod keys;
mod known_hosts;
mod limits;
mod listen;
pub mod lock;
mod memory_budget;
mod meter;
mod metrics;
mod notify;
mod otlp;
mod receiver;
mod recent;
mod reload;
mod request;
mod request_settings;
mod server;
mod short_writes;
mod snapshot;
mod sys;
mod text;
mod tls;
mod trace_context;
mod upstream;

/// Compiles and runs the README's examples as doc tests, so that they stay correct.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

#[doc(hidden)]
pub use sys::{ALLOCATOR, Allocator};
