//! The backends, their models, and the selection of a backend for each request. Does no I/O.
//!
//! A request asks the [`Pool`] for the [`Route`] of its model: the backends that may serve it. Then
//! it acquires a [`Slot`] at one of them, or waits for one. Dropping the slot frees it for the next
//! request.

mod affinity;
mod backend;
mod backend_health;
mod breaker;
mod choose;
mod clock;
mod current;
mod endpoints;
mod fair;
mod issuers;
mod latency;
mod lossy_cache;
mod model;
mod pick;
mod pool;
mod queue;
mod random;
mod reason;
mod reconfigure;
mod route;
mod routes;
mod slot;
mod stats;
mod suspicion;
mod table;
mod traffic;
mod usage_opt_outs;
mod wait_key;

#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::time::Duration;

use crate::backend_id::BackendId;
use crate::config::{Alias, Config};
use crate::issued_ids::IdHash;
use crate::request_settings::RequestSettings;

pub(crate) use backend::{Backend, BackendState};
pub(crate) use backend_health::LastError;
pub(crate) use choose::Choice;
pub(crate) use endpoints::EndpointKey;
pub(crate) use issuers::{CAPACITY as ISSUER_CAPACITY, Issuer, IssuerQueue};
pub(crate) use model::{Model, Models};
pub(crate) use pool::Pool;
pub(crate) use queue::WaitError;
pub(crate) use reason::{ChoiceReason, ComparedBackend, Comparison};
pub(crate) use reconfigure::{PlannedBackend, Reconfigured};
pub(crate) use route::Route;
pub(crate) use slot::Slot;
pub(crate) use suspicion::{Evidence, Fault};
pub(crate) use table::Table;
pub(crate) use traffic::TrafficTotals;

/// Settings of a pool.
#[derive(Clone, Debug)]
pub(crate) struct PoolConfig {
    pub(crate) aliases: Vec<Alias>,
    pub(crate) settings: Arc<RequestSettings>,
    pub(crate) queue: usize,
    pub(crate) queue_timeout: Duration,
    /// Name of this host, if issued ids are shared with other hosts. It distinguishes the loopback
    /// backends of different hosts, whose URLs can be equal.
    pub(crate) host: Option<String>,
    /// Queues of the threads that persist each newly issued id with its backend.
    pub(crate) issuer_queues: Vec<Arc<IssuerQueue>>,
}

impl PoolConfig {
    pub(crate) fn new(config: &Config, settings: Arc<RequestSettings>) -> Self {
        Self {
            aliases: config.aliases.clone(),
            settings,
            queue: config.server.queue,
            queue_timeout: config.server.queue_timeout,
            host: None,
            issuer_queues: Vec::new(),
        }
    }
}

/// Properties of a request that influence which backend is selected.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct SelectHints<'a> {
    /// Chain hashes of the prompt's 1 KiB blocks: `blocks[i]` covers the first i+1 KiB. They find
    /// the backend whose prefix cache has the longest beginning of the prompt.
    pub(crate) blocks: &'a [u64],
    /// Hash of an issued id, such as a file id, that the request names. Only the backend that
    /// issued the id knows it.
    pub(crate) issued: Option<IdHash>,
    /// Sender of the request. The queue serves senders in turn. Errors that a client may provoke
    /// eject a backend only if they come from two client addresses or three different prompts.
    pub(crate) client: ClientKey,
    /// Endpoint of a POST whose path has no id. Backends that lack the endpoint are avoided.
    pub(crate) endpoint: Option<EndpointKey>,
}

/// Sender of a request, by which the fair queue divides slots among clients.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct ClientKey {
    /// The client's API key, or without keys its address. All addresses of an IPv6 /64 network count
    /// as one address.
    pub(crate) address: u64,
    /// The address of a client with an API key. Without keys it is a hash of the credential that came
    /// with the request, 0 without one. Clients choose it, so it divides the share of a key or an
    /// address and never adds to it.
    pub(crate) credential: u64,
}

/// Reason why no route exists for a model. It decides between 404 and 503.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RouteError {
    /// No backend serves the model.
    Unknown,
    /// No backend is known to serve the model, but some have not reported their models yet.
    NotYet,
}
