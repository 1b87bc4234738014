//! State of the server that all workers share.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio_util::sync::CancellationToken;

use super::client_http::HttpLimits;
use super::connections::Connections;
use crate::balance::Pool;
use crate::body_deadline::BodyPace;
use crate::config::{Networks, UnknownEndpoints};
use crate::contention::Contention;
use crate::dropped_headers::DroppedHeaders;
use crate::exporter;
use crate::memory_budget::Budget;
use crate::meter::Meter;
use crate::request::{Cancelled, Counter, KnownHosts};
use crate::upstream::{AddressLimit, BackendConnections};

/// State of the server that every request can read.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) pool: Arc<Pool>,
    /// Requests in flight.
    pub(crate) requests: Counter,
    /// Connections of clients.
    pub(crate) connections: Arc<Connections>,
    pub(crate) backend_connections: Arc<BackendConnections>,
    pub(crate) address_limit: Arc<AddressLimit>,
    pub(crate) started: Instant,
    /// `server.max_body`, in bytes.
    pub(crate) max_body: usize,
    /// Memory for what clients send and do not read: heads, bodies, responses.
    pub(crate) budget: Arc<Budget>,
    /// Names of a private server, which serves only programs on this machine. `None` for a public one.
    pub(crate) private_hosts: Option<KnownHosts>,
    pub(crate) unknown_endpoints: UnknownEndpoints,
    /// Peers that report their clients' addresses.
    pub(crate) proxies: Networks,
    pub(crate) dropped_headers: Arc<DroppedHeaders>,
    pub(crate) client_limits: ClientLimits,
    pub(crate) contention: Contention,
    pub(crate) http: HttpLimits,
    pub(crate) cancelled: Arc<Cancelled>,
    pub(crate) meter: Arc<Meter>,
    /// Progress of usage records; `None` if no usage is recorded.
    pub(crate) usage: Option<Arc<exporter::State>>,
    /// Cancelled when the server stops accepting connections.
    pub(crate) draining: CancellationToken,
}

/// Limits on the speed of clients.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ClientLimits {
    /// Minimum rate at which a client sends a request's body.
    pub(crate) body: BodyPace,
    /// Maximum time for which a client may accept no response bytes: `server.send_timeout`.
    pub(crate) send: Duration,
    /// Maximum number of requests per minute that a client may cancel on one HTTP/2 connection.
    pub(crate) max_resets: u32,
}

impl Shared {
    pub(crate) fn is_draining(&self) -> bool {
        self.draining.is_cancelled()
    }
}
