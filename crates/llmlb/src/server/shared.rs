//! State of the server that all workers share.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio_util::sync::CancellationToken;

use super::client_http::HttpLimits;
use super::connections::ClientConnections;
use crate::balance::Pool;
use crate::body_deadline::BodyPace;
use crate::config::{Networks, UnknownEndpoints};
use crate::contention::Contention;
use crate::dropped_headers::DroppedHeaders;
use crate::exporter;
use crate::issuer_store::IssuerStore;
use crate::keys::KeyTable;
use crate::limits::Limiter;
use crate::memory_budget::Budget;
use crate::meter::Meter;
use crate::request::{Cancelled, Counter, KnownHosts, RefusedRequests};
use crate::tls::TlsConfig;
use crate::upstream::{AddressLimit, BackendConnections};

/// State of the server that every request can read.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) pool: Arc<Pool>,
    /// Requests in flight.
    pub(crate) requests: Counter,
    /// Client connections.
    pub(crate) connections: Arc<ClientConnections>,
    pub(crate) backend_connections: Arc<BackendConnections>,
    pub(crate) address_limit: Arc<AddressLimit>,
    pub(crate) started: Instant,
    /// `server.max_body`, in bytes.
    pub(crate) max_body: usize,
    /// Memory budget for the connections, request heads, request bodies and unsent responses of all
    /// clients (`server.body_memory`).
    pub(crate) budget: Arc<Budget>,
    /// TLS of the port; `None` if clients connect without it.
    pub(crate) tls: Option<Arc<TlsConfig>>,
    /// Host names of a private server, which rejects requests of foreign web pages. `None` if the
    /// server is public: not bound to loopback, or with `server.allow_public`.
    pub(crate) private_hosts: Option<KnownHosts>,
    pub(crate) unknown_endpoints: UnknownEndpoints,
    /// Reverse proxies that are trusted to report their clients' addresses.
    pub(crate) proxies: Networks,
    pub(crate) dropped_headers: Arc<DroppedHeaders>,
    pub(crate) client_limits: ClientLimits,
    pub(crate) contention: Contention,
    pub(crate) http: HttpLimits,
    pub(crate) cancelled: Arc<Cancelled>,
    /// API keys of clients.
    pub(crate) keys: Arc<KeyTable>,
    /// Counts of requests that API keys do not permit.
    pub(crate) refused: Arc<RefusedRequests>,
    pub(crate) meter: Arc<Meter>,
    pub(crate) limiter: Arc<Limiter>,
    /// Progress of usage records; `None` if no usage is recorded.
    pub(crate) usage: Option<Arc<exporter::ExportState>>,
    /// Ids that other servers of the fleet have received; `None` without Redis.
    pub(crate) issuer_store: Option<IssuerStore>,
    /// Cancelled when the server stops accepting connections.
    pub(crate) draining: CancellationToken,
}

/// Limits on clients that send or read slowly, or cancel many requests.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ClientLimits {
    /// Minimum rate at which a client sends a request's body.
    pub(crate) body: BodyPace,
    /// Maximum time for which a client may read a waiting response too slowly
    /// (`server.send_timeout`). After that time its connection is closed, or its HTTP/2 stream is
    /// reset.
    pub(crate) send: Duration,
    /// Maximum number of requests per minute that a client may cancel on one HTTP/2 connection.
    pub(crate) max_resets: u32,
}

impl Shared {
    pub(crate) fn is_draining(&self) -> bool {
        self.draining.is_cancelled()
    }
}
