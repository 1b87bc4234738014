//! LLM servers that need nothing: they make up their answers.
//!
//! `llmlb serve --demo` starts three of them inside its own process, of different speeds, so that a
//! newcomer sees balancing, streaming and metering within a minute. They are real HTTP/1.1 servers
//! on 127.0.0.1, and speak as an OpenAI-compatible server does: whatever works with them through
//! the balancer works with a real server, too.
//!
//! A request flows [`server`] -> [`routes`] -> [`fields`] -> [`prompt`] -> [`answer`] ->
//! [`completions`], which either waits and answers whole or hands [`events`] to hyper, paced by
//! [`pace`]. Nothing is random: the same request to the same backend gets the same answer.

mod answer;
mod base64;
mod completions;
mod embeddings;
mod events;
mod fields;
mod hash;
mod models;
mod pace;
mod pieces;
mod prompt;
mod refusal;
mod reply;
mod routes;
mod server;
mod shape;
#[cfg(test)]
mod tests;

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use models::Model;
pub(crate) use pace::Pace;

/// A demo server that runs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DemoBackend {
    pub(crate) name: &'static str,
    pub(crate) address: SocketAddr,
}

/// What makes one demo server differ from another.
#[derive(Clone, Copy, Debug)]
struct Profile {
    name: &'static str,
    pace: Pace,
    models: &'static [Model],
}

const PROFILES: [Profile; 3] = [
    Profile {
        name: "demo-fast",
        pace: Pace::new(Duration::from_millis(50), Duration::from_micros(16_667)),
        models: &[Model::Demo, Model::Embed],
    },
    Profile {
        name: "demo-medium",
        pace: Pace::new(Duration::from_millis(150), Duration::from_micros(33_333)),
        models: &[Model::Demo, Model::Large, Model::Embed],
    },
    Profile {
        name: "demo-slow",
        pace: Pace::new(Duration::from_millis(400), Duration::from_micros(83_333)),
        models: &[Model::Demo, Model::Large],
    },
];

/// Binds the demo servers, and runs them on `tracker` until `stop` is cancelled. Then they take no
/// more connections and close those that are idle; requests in progress finish, and with the last
/// of them ends the last task. To be called within a tokio runtime.
pub(crate) async fn start(
    tracker: &TaskTracker,
    stop: CancellationToken,
) -> std::io::Result<Vec<DemoBackend>> {
    start_profiles(&PROFILES, tracker, &stop).await
}

async fn start_profiles(
    profiles: &[Profile],
    tracker: &TaskTracker,
    stop: &CancellationToken,
) -> std::io::Result<Vec<DemoBackend>> {
    // All are bound before any runs: after a failure nothing is left behind.
    let mut bound = Vec::with_capacity(profiles.len());
    for profile in profiles {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        let backend = DemoBackend {
            name: profile.name,
            address: listener.local_addr()?,
        };
        bound.push((listener, *profile, backend));
    }
    let mut backends = Vec::with_capacity(bound.len());
    for (listener, profile, backend) in bound {
        let serving = server::serve(listener, Arc::new(profile), tracker.clone(), stop.clone());
        tracker.spawn(serving);
        tracing::debug!(name = backend.name, address = %backend.address, "demo backend started");
        backends.push(backend);
    }
    Ok(backends)
}
