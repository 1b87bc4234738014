//! State of a worker that forwarding uses.

use std::sync::Arc;
use std::time::Duration;

use tokio_util::task::TaskTracker;

use super::Via;
use crate::balance::Pool;
use crate::body_deadline::BodyPace;
use crate::contention::Contention;
use crate::dropped_headers::DroppedHeaders;
use crate::headers::HeaderPatterns;
use crate::memory_budget::Budget;
use crate::request::Accounting;
use crate::upstream::{Connector, IdlePool};

/// Shared state of the requests that one worker forwards.
#[derive(Debug)]
pub(crate) struct ForwardContext {
    pub(crate) accounting: Arc<Accounting>,
    pub(crate) pool: Arc<Pool>,
    pub(crate) connector: Connector,
    /// Idle connections of this worker to backends, kept for further requests.
    pub(crate) idle: Arc<IdlePool>,
    pub(crate) timeouts: ForwardTimeouts,
    pub(crate) contention: Contention,
    pub(crate) budget: Arc<Budget>,
    /// This server's entry, which is added to the field `Via` of every forwarded request to detect
    /// loops.
    pub(crate) via: Via,
    /// Client header fields that are forwarded in addition to the default ones.
    pub(crate) forward_headers: HeaderPatterns,
    pub(crate) dropped_headers: Arc<DroppedHeaders>,
    /// Tunnels run in tasks of their own, which the worker waits for.
    pub(crate) tasks: TaskTracker,
}

/// Timeouts of a request that is forwarded.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ForwardTimeouts {
    /// Maximum time until a response begins: `upstream.first_byte_timeout`.
    pub(crate) first_byte: Duration,
    /// Maximum time between two chunks of a response: `upstream.idle_timeout`.
    pub(crate) idle: Duration,
    /// Minimum rate at which a client sends a body that is forwarded as it arrives.
    pub(crate) body: BodyPace,
    /// Maximum time for which a tunnel may carry no bytes: `server.tunnel_idle`.
    pub(crate) tunnel_idle: Duration,
}
