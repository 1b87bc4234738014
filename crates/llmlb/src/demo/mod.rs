//! Built-in LLM servers for `llmlb serve --demo`. They generate sample responses without a model.
//!
//! `llmlb serve --demo` starts three demo servers in its own process, with different speeds, so
//! that a new user sees balancing, streaming and metering within a minute. The demo servers are
//! real HTTP/1.1 servers on 127.0.0.1 with an OpenAI-compatible API, so the balancer treats them
//! like any other backend.
//!
//! A request passes [`server`] -> [`routes`] -> [`fields`] -> [`prompt`] -> [`generate`] ->
//! [`completions`], which returns a whole response after a delay, or [`events`] paced by [`pace`].
//! Responses are deterministic: the same request to the same backend gets the same response.

mod base64;
mod completions;
mod embeddings;
mod error;
mod events;
mod fields;
mod generate;
mod hash;
mod models;
mod pace;
mod pieces;
mod prompt;
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

use models::DemoModel;
pub(crate) use pace::Pace;

/// A running demo server.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DemoBackend {
    pub(crate) name: &'static str,
    pub(crate) address: SocketAddr,
}

/// Name, speed and models of a demo server.
#[derive(Clone, Copy, Debug)]
struct Profile {
    name: &'static str,
    pace: Pace,
    models: &'static [DemoModel],
}

const PROFILES: [Profile; 3] = [
    Profile {
        name: "demo-fast",
        pace: Pace::new(Duration::from_millis(50), Duration::from_micros(16_667)),
        models: &[DemoModel::Demo, DemoModel::Embed],
    },
    Profile {
        name: "demo-medium",
        pace: Pace::new(Duration::from_millis(150), Duration::from_micros(33_333)),
        models: &[DemoModel::Demo, DemoModel::Large, DemoModel::Embed],
    },
    Profile {
        name: "demo-slow",
        pace: Pace::new(Duration::from_millis(400), Duration::from_micros(83_333)),
        models: &[DemoModel::Demo, DemoModel::Large],
    },
];

/// Binds the demo servers and runs them on `tracker` until `stop` is cancelled. They then stop
/// accepting, close idle connections and complete the requests in flight; the last task ends with
/// the last request. Must be called within a tokio runtime.
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
    // Bind the sockets of all demo servers before any server starts, so that a failure leaves no
    // server running.
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
