//! State of one worker that the guards of its requests share, to limit, log and meter the requests.

use std::sync::Arc;

use tokio_util::sync::CancellationToken;

use super::{AccessLog, Cancelled, Ids, RecentErrors, RefusedRequests};
use crate::meter::{CommitGroup, Meter};
use crate::metrics::WorkerMetrics;
use crate::otlp::SpanQueue;
use crate::recent::RecentShard;
use crate::upstream::AddressLimit;

#[derive(Debug)]
pub(crate) struct Accounting {
    pub(crate) ids: Arc<Ids>,
    pub(crate) address_limit: Arc<AddressLimit>,
    pub(crate) cancelled: Arc<Cancelled>,
    pub(crate) meter: Arc<Meter>,
    /// Counts of requests that were rejected because their API keys do not permit them.
    pub(crate) refused: Arc<RefusedRequests>,
    /// The last requests that failed.
    pub(crate) errors: Arc<RecentErrors>,
    pub(crate) commits: CommitGroup,
    pub(crate) access_log: AccessLog,
    /// Requests of this worker that have finished recently.
    pub(crate) recent: Arc<RecentShard>,
    /// Queue of spans; `None` if no traces are sent.
    pub(crate) spans: Option<Arc<SpanQueue>>,
    pub(crate) metrics: Arc<WorkerMetrics>,
    /// Cancelled when a shutdown aborts the requests that are still running, so that their outcome
    /// is `cut` and not a cancellation by the client.
    pub(crate) abort: CancellationToken,
}
