//! State of a worker that forwarding uses.

use std::sync::Arc;

use tokio_util::task::TaskTracker;

use super::Via;
use crate::balance::{Backend, Pool};
use crate::contention::Contention;
use crate::dropped_headers::DroppedHeaders;
use crate::memory_budget::Budget;
use crate::request::Accounting;
use crate::upstream::{Connector, IdlePool, Stream};

/// Shared state of the requests that one worker forwards.
#[derive(Debug)]
pub(crate) struct ForwardContext {
    pub(crate) accounting: Arc<Accounting>,
    pub(crate) pool: Arc<Pool>,
    pub(crate) connector: Connector,
    /// Idle connections of this worker to backends, kept for further requests.
    pub(crate) idle: Arc<IdlePool>,
    pub(crate) contention: Contention,
    pub(crate) budget: Arc<Budget>,
    /// This server's entry, which is added to the field `Via` of every forwarded request to detect
    /// loops.
    pub(crate) via: Via,
    pub(crate) dropped_headers: Arc<DroppedHeaders>,
    /// Tunnels run in tasks of their own, which the worker waits for.
    pub(crate) tasks: TaskTracker,
}

impl ForwardContext {
    /// Keeps a connection for the next request to its backend, unless the backend gets no further requests.
    pub(super) fn keep_idle(&self, backend: &Backend, stream: Stream) {
        if !backend.is_removed() {
            self.idle.keep(backend.id, stream);
        }
    }
}
