//! An LLM load balancer that never runs twice.
//!
//! The command `llmlb` is this library's [`cli`]. For programs of your own there is [`lock`]: it
//! tells whether a server runs on a port, and keeps a second one from starting.

mod app;
mod backend_id;
mod balance;
mod body_deadline;
mod body_edit;
pub mod cli;
mod client_network;
mod config;
mod contention;
mod data_dir;
mod demo;
mod descriptors;
#[cfg(any(test, fuzzing))]
mod dice;
mod dropped_headers;
mod endpoint;
mod episode;
mod exporter;
mod forward;
#[cfg(any(test, fuzzing))]
#[doc(hidden)]
pub mod fuzz;
mod headers;
mod health;
mod issued_ids;
mod json;
mod listen;
pub mod lock;
mod memory_budget;
mod meter;
mod notify;
mod receiver;
mod request;
mod server;
mod short_writes;
mod sys;
mod text;
mod upstream;

/// The README's example is compiled and run.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

#[doc(hidden)]
pub use sys::{ALLOCATOR, Allocator};
