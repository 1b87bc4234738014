//! Parts for tests of llmlb that see every byte: real processes, real sockets, no HTTP library.
//!
//! | part | purpose |
//! |---|---|
//! | [`FakeLlm`] | LLM server that responds as a script says and logs every byte it receives |
//! | [`wire`] | responses of the handlers of a [`FakeLlm`], byte by byte |
//! | [`api_server`] | [`FakeLlm`] that implements OpenAI's and Anthropic's APIs and counts tokens |
//! | [`ollama()`] | [`FakeLlm`] that implements Ollama's API |
//! | [`cpp_httplib`] | rules for a [`FakeLlm`] that leaves bodies unread, as llama.cpp did |
//! | [`raw`] | listeners that handle connections rather than requests |
//! | [`UsageReceiver`] | receiver of usage records that responds as a script says |
//! | [`Http1`], [`Http2`] | clients that send any bytes and any frames |
//! | [`Connection`], [`h2_client`] | clients for tests: HTTP/1.1 and valid HTTP/2 |
//! | [`Process`], [`Finished`] | processes with their output in files |
//! | [`Sandbox`], [`LlmlbServer`] | llmlb processes with directories of their own |
//! | [`backends`] | backends for the model `m` and llmlb servers in front of them |
//! | [`records`] | usage records, read from the data directory |
//! | [`resources`] | memory and descriptors of a process (Linux) |
//! | [`eventually`], [`until`], [`is_reached`] | waiting with a deadline |
//! | [`skip`], [`has_tool`], [`run_role`] | tools and privileges that tests need; tests as processes |
//! | [`corpus`] | inputs of the fuzz targets |
//! | [`certificates`] | certificates for servers and clients, created by openssl |
//! | [`help`] | help screens of a command, compared with a file |
//! | [`random`] | random numbers that can be repeated |
//!
//! Functions that return a `Result` return every failure, for callers that report it and are not
//! tests. The other functions panic, which fails the calling test.

#![expect(
    clippy::expect_used,
    clippy::missing_panics_doc,
    clippy::panic,
    reason = "a failure of the kit is a failure of the test that uses it"
)]

pub mod api_server;
pub mod backends;
pub mod certificates;
mod connection;
pub mod corpus;
mod fake_llm;
mod framing;
mod gate;
pub mod h2_client;
pub mod help;
mod http1;
mod http2;
mod message;
mod ollama;
mod process;
pub mod random;
pub mod raw;
mod receiver;
pub mod records;
mod requirements;
#[cfg(target_os = "linux")]
pub mod resources;
mod sandbox;
mod serve;
mod server;
mod wait;
pub mod wire;

pub mod cpp_httplib;

pub use connection::{Answer, Connection, get, post, read_chunk};
pub use fake_llm::{FakeLlm, FakeLlmBuilder, chat_completion, chat_events, model_list};
pub use gate::Gate;
pub use http1::{Http1, send};
pub use http2::{Frame, FrameKind, Http2, Http2Options, StreamEnd, hpack};
pub use message::{Head, Request, Response};
pub use ollama::ollama;
#[cfg(unix)]
pub use process::copy_program;
pub use process::{Finished, Process, append};
pub use receiver::UsageReceiver;
#[cfg(unix)]
pub use requirements::has_root;
pub use requirements::{Missing, has_tool, run_role, skip};
pub use sandbox::Sandbox;
pub use serve::{LlmlbServer, ServeBuilder, free_port};
pub use server::{BodyHandling, Received, Reply, ScriptedServer, Step};
pub use wait::{DEADLINE, TimedOut, eventually, is_reached, try_eventually, until};
