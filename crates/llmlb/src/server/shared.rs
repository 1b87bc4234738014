//! State of the server that all workers share.

use std::sync::Arc;
use std::time::Instant;

use tokio_util::sync::CancellationToken;

use super::connections::ClientConnections;
use crate::balance::Pool;
use crate::config::ConfigStatus;
use crate::contention::Contention;
use crate::dashboard::Dashboard;
use crate::dropped_headers::DroppedHeaders;
use crate::exporter;
use crate::issuer_store::IssuerStore;
use crate::keys::KeyTable;
use crate::limits::Limiter;
use crate::memory_budget::Budget;
use crate::meter::Meter;
use crate::metrics::Metrics;
use crate::otlp::SpanQueue;
use crate::recent::Recent;
use crate::request::{Cancelled, Counter, RecentErrors, RefusedRequests};
use crate::request_settings::RequestSettings;
use crate::snapshot::Snapshots;
use crate::tls::TlsConfig;
use crate::upstream::{AddressLimit, BackendConnections};

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
    /// Memory budget for the connections, request heads, request bodies and unsent responses of all
    /// clients (`server.body_memory`).
    pub(crate) budget: Arc<Budget>,
    /// TLS configuration of the port; `None` if clients connect without TLS.
    pub(crate) tls: Option<Arc<TlsConfig>>,
    pub(crate) dropped_headers: Arc<DroppedHeaders>,
    pub(crate) contention: Contention,
    pub(crate) cancelled: Arc<Cancelled>,
    pub(crate) keys: Arc<KeyTable>,
    /// Counts of requests that were rejected because their API keys do not permit them.
    pub(crate) refused: Arc<RefusedRequests>,
    pub(crate) errors: Arc<RecentErrors>,
    /// Snapshots of the server, for `/dashboard` and `llmlb top`.
    pub(crate) snapshots: Arc<Snapshots>,
    pub(crate) dashboard: Dashboard,
    pub(crate) meter: Arc<Meter>,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) limiter: Arc<Limiter>,
    /// Requests that have finished recently.
    pub(crate) recent: Recent,
    /// Queue of spans; `None` if no traces are sent.
    pub(crate) spans: Option<Arc<SpanQueue>>,
    /// State of the running and the last rejected configuration, for `/status`.
    pub(crate) config: Arc<ConfigStatus>,
    /// Progress of usage records from staging to delivery, for `/status`; `None` if no usage is
    /// recorded.
    pub(crate) usage: Option<Arc<exporter::ExportState>>,
    /// Ids that backends issued, shared by the servers of the fleet through Redis; `None` without
    /// Redis.
    pub(crate) issuer_store: Option<IssuerStore>,
    /// Cancelled when the server starts to drain and stops accepting connections.
    pub(crate) draining: CancellationToken,
}

impl Shared {
    /// Returns the settings for requests and connections that begin now. A reload replaces them.
    pub(crate) fn settings(&self) -> Arc<RequestSettings> {
        self.pool.settings()
    }

    pub(crate) fn is_draining(&self) -> bool {
        self.draining.is_cancelled()
    }
}
