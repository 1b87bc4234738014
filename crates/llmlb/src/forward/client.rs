//! Connections to backends, kept open between requests.

use std::error::Error;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http::Uri;
use http_body_util::{Either, Full};
use hyper::body::Incoming;
use hyper_util::client::legacy::Client as PooledClient;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_util::task::TaskTracker;
use tower_service::Service;

/// What is sent to a backend: bytes that were read already, or a body that passes through.
pub(crate) type Outgoing = Either<Full<Bytes>, Incoming>;

/// A client with its own pool of connections.
pub(crate) type Client = PooledClient<Connector, Outgoing>;

/// Shorter than the five seconds after which uvicorn (vLLM) and llama.cpp close idle connections,
/// so that a request does not meet a connection that is just being closed.
const IDLE_CONNECTION: Duration = Duration::from_secs(4);

/// Makes a client whose tasks belong to the tracker.
pub(crate) fn client(connect_timeout: Duration, tasks: TaskTracker) -> Client {
    let mut connector = HttpConnector::new();
    connector.set_nodelay(true);
    let connector = Connector {
        connector,
        limit: connect_timeout,
    };
    PooledClient::builder(Tracked(tasks))
        .pool_timer(TokioTimer::new())
        .pool_idle_timeout(IDLE_CONNECTION)
        .build(connector)
}

/// Connects within a limit, which counts from the first question to a name server.
#[derive(Clone, Debug)]
pub(crate) struct Connector {
    connector: HttpConnector,
    limit: Duration,
}

type Connected = Result<TokioIo<TcpStream>, Box<dyn Error + Send + Sync>>;

impl Service<Uri> for Connector {
    type Response = TokioIo<TcpStream>;
    type Error = Box<dyn Error + Send + Sync>;
    type Future = Pin<Box<dyn Future<Output = Connected> + Send>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.connector.poll_ready(cx).map_err(Into::into)
    }

    fn call(&mut self, uri: Uri) -> Self::Future {
        let connecting = timeout(self.limit, self.connector.call(uri));
        Box::pin(async move {
            match connecting.await {
                Ok(connected) => connected.map_err(Into::into),
                Err(_) => Err(io::Error::from(io::ErrorKind::TimedOut).into()),
            }
        })
    }
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
