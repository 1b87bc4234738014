//! The parts of a server that a snapshot shows.

use std::sync::Arc;
use std::time::Instant;

use tokio_util::sync::CancellationToken;

use crate::balance::Pool;
use crate::exporter::ExportState;
use crate::keys::KeyTable;
use crate::limits::Limiter;
use crate::meter::Meter;
use crate::request::{Counter, RecentErrors};

/// The parts of a server that a snapshot shows.
#[derive(Debug)]
pub(crate) struct Sources {
    pub(crate) port: u16,
    pub(crate) started: Instant,
    pub(crate) draining: CancellationToken,
    pub(crate) pool: Arc<Pool>,
    pub(crate) requests: Counter,
    pub(crate) errors: Arc<RecentErrors>,
    pub(crate) meter: Arc<Meter>,
    /// `None` if no usage is recorded.
    pub(crate) export: Option<Arc<ExportState>>,
    pub(crate) keys: Arc<KeyTable>,
    pub(crate) limiter: Arc<Limiter>,
}
