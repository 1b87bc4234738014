//! Connections to backends, kept open between requests.

use std::time::Duration;

use bytes::Bytes;
use http_body_util::{Either, Full};
use hyper::body::Incoming;
use hyper_util::client::legacy::Client as PooledClient;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioTimer;
use tokio_util::task::TaskTracker;

/// What is sent to a backend: bytes that were read already, or a body that passes through.
pub(crate) type Outgoing = Either<Full<Bytes>, Incoming>;

/// A client with its own pool of connections.
pub(crate) type Client = PooledClient<HttpConnector, Outgoing>;

/// Shorter than the five seconds after which uvicorn (vLLM) and llama.cpp close idle connections,
/// so that a request does not meet a connection that is just being closed.
const IDLE_CONNECTION: Duration = Duration::from_secs(4);

/// Makes a client whose tasks belong to the tracker.
pub(crate) fn client(connect_timeout: Duration, tasks: TaskTracker) -> Client {
    let mut connector = HttpConnector::new();
    connector.set_nodelay(true);
    connector.set_connect_timeout(Some(connect_timeout));
    PooledClient::builder(Tracked(tasks))
        .pool_timer(TokioTimer::new())
        .pool_idle_timeout(IDLE_CONNECTION)
        .build(connector)
}

/// Runs hyper's connection tasks where they are known of.
#[derive(Clone)]
struct Tracked(TaskTracker);

impl<F> hyper::rt::Executor<F> for Tracked
where
    F: Future<Output = ()> + Send + 'static,
{
    fn execute(&self, task: F) {
        self.0.spawn(task);
    }
}
