//! Parts for tests of llmlb that see every byte: real processes, real sockets, no HTTP library.
//!
//! | part | purpose |
//! |---|---|
//! | [`FakeLlm`] | LLM server that responds as a script says and logs every byte it receives |
//! | [`cpp_httplib`] | its variant that leaves request bodies unread, as llama.cpp did |
//! | [`UsageReceiver`] | receiver of usage records that responds as a script says |
//! | [`Http1`], [`Http2`] | clients that send any bytes and any frames |
//! | [`Sandbox`], [`LlmlbServer`] | llmlb processes with directories of their own |
//! | [`records`] | usage records, read from the data directory |
//! | [`resources`] | memory and descriptors of a process (Linux) |
//! | [`eventually`], [`is_reached`] | waiting with a deadline |
//! | [`skip`], [`has_tool`], [`run_role`] | tools and privileges that tests need; tests as processes |
//!
//! No function panics: failures are returned, so that programs other than tests can report them.

mod fake_llm;
mod gate;
mod http1;
mod http2;
mod message;
mod receiver;
pub mod records;
mod requirements;
#[cfg(target_os = "linux")]
pub mod resources;
mod sandbox;
mod serve;
mod server;
mod wait;

pub mod cpp_httplib;

pub use fake_llm::{FakeLlm, FakeLlmBuilder, chat_completion, chat_events, model_list};
pub use gate::Gate;
pub use http1::{Http1, send};
pub use http2::{Frame, FrameKind, Http2, Http2Options, StreamEnd, hpack};
pub use message::{Head, Request, Response};
pub use receiver::UsageReceiver;
#[cfg(unix)]
pub use requirements::has_root;
pub use requirements::{Missing, has_tool, run_role, skip};
pub use sandbox::{Finished, Sandbox};
pub use serve::{LlmlbServer, ServeBuilder};
pub use server::{BodyHandling, Received, Reply, ScriptedServer, Step};
pub use wait::{DEADLINE, TimedOut, eventually, is_reached};
