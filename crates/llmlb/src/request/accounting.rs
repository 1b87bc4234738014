//! Shared state of the guards of requests.

use std::sync::Arc;

use tokio_util::sync::CancellationToken;

use super::{AccessLog, Cancelled, Ids};
use crate::meter::{CommitGroup, Meter};
use crate::upstream::AddressLimit;

/// Services by which the guards of one worker's requests identify, limit, log and meter them.
#[derive(Debug)]
pub(crate) struct Accounting {
    pub(crate) ids: Arc<Ids>,
    pub(crate) address_limit: Arc<AddressLimit>,
    pub(crate) cancelled: Arc<Cancelled>,
    pub(crate) meter: Arc<Meter>,
    /// Records that the kernel does not have yet.
    pub(crate) commits: CommitGroup,
    pub(crate) access_log: AccessLog,
    /// Cancelled when the server aborts the requests that are still running.
    pub(crate) abort: CancellationToken,
}
