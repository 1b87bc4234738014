//! State that the request guards of one worker share. A request guard logs and meters its request
//! when the request ends.

use std::sync::Arc;

use tokio_util::sync::CancellationToken;

use super::{AccessLog, Cancelled, Ids, RecentErrors, RefusedRequests};
use crate::meter::{CommitGroup, Meter};
use crate::upstream::AddressLimit;

/// State of one worker that the guards of its requests share, to identify, limit, log and meter the
/// requests.
#[derive(Debug)]
pub(crate) struct Accounting {
    pub(crate) ids: Arc<Ids>,
    pub(crate) address_limit: Arc<AddressLimit>,
    pub(crate) cancelled: Arc<Cancelled>,
    pub(crate) meter: Arc<Meter>,
    /// Counts of requests that API keys do not permit.
    pub(crate) refused: Arc<RefusedRequests>,
    /// The last requests that failed.
    pub(crate) errors: Arc<RecentErrors>,
    /// Usage records of this worker that are not persisted yet.
    pub(crate) commits: CommitGroup,
    pub(crate) access_log: AccessLog,
    /// Cancelled when the server aborts the requests that are still running.
    pub(crate) abort: CancellationToken,
}
