//! State of a worker that its requests use to reach backends.

use std::sync::Arc;

use tokio_util::task::TaskTracker;

use super::Via;
use crate::balance::{Backend, Pool};
use crate::contention::Contention;
use crate::dropped_headers::DroppedHeaders;
use crate::memory_budget::Budget;
use crate::request::Accounting;
use crate::upstream::{Connector, IdlePool, Stream};

#[derive(Debug)]
pub(crate) struct ForwardContext {
    pub(crate) accounting: Arc<Accounting>,
    pub(crate) pool: Arc<Pool>,
    pub(crate) connector: Connector,
    pub(crate) idle: Arc<IdlePool>,
    pub(crate) contention: Contention,
    pub(crate) budget: Arc<Budget>,
    /// This server's entry in the header field `Via` of every forwarded request, by which it
    /// recognizes a request that comes back in a loop.
    pub(crate) via: Via,
    pub(crate) dropped_headers: Arc<DroppedHeaders>,
    /// Tasks of tunnels, such as WebSockets. The worker waits for them before it ends, because its
    /// end aborts them.
    pub(crate) tasks: TaskTracker,
}

impl ForwardContext {
    /// Keeps a connection for the next request to its backend. The connection is closed if a reload
    /// has removed the backend.
    pub(super) fn keep_idle(&self, backend: &Backend, stream: Stream) {
        if !backend.is_removed() {
            self.idle.keep(backend.id, stream);
        }
    }
}
