//! Serves clients: worker threads accept connections, speak HTTP/1.1 and HTTP/2, and pass each request
//! through its stages.

mod admin;
mod admission;
mod backlog;
mod client_http;
mod client_io;
mod client_memory;
mod client_stream;
mod connection;
mod connections;
mod events;
mod h2_idle;
mod h2_streams;
mod h2_unfinished;
mod metrics;
mod models;
mod ollama;
mod opening;
mod operator;
mod protocol;
mod raw_response;
mod serve;
mod shared;
mod unparsed;
mod websocket;
mod worker;

pub(crate) use connections::ClientConnections;
pub(crate) use raw_response::HTTPS_REQUIRED;
pub(crate) use shared::Shared;
pub(crate) use worker::{WorkerConfig, Workers};
