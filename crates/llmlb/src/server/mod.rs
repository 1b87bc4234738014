//! Serving clients: worker threads accept connections, drive HTTP/1.1 and HTTP/2 on them, and take
//! each request through its stages.

mod admin;
mod backlog;
mod client_http;
mod client_io;
mod client_memory;
mod connection;
mod connections;
mod h2_idle;
mod h2_streams;
mod h2_unfinished;
mod models;
mod ollama;
mod protocol;
mod serve;
mod shared;
mod unparsed;
mod worker;

pub(crate) use client_http::HttpLimits;
pub(crate) use connections::Connections;
pub(crate) use shared::{ClientLimits, Shared};
pub(crate) use worker::{WorkerConfig, Workers};
