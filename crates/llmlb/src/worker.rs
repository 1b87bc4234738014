//! The threads that serve requests: each has its own event loop and its own connections to the
//! backends, so that they need not wait for one another.

use std::io;
use std::net::TcpListener;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::TcpStream;
use tokio::sync::mpsc;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::app::Shared;
use crate::forward::{self, Client};
use crate::request::{self, Caller, Counter};

/// How long a client may take to send a request's head; idle connections are closed after it too.
const HEAD_WITHIN: Duration = Duration::from_secs(75);
/// How long a connection may still bring a request, once the server is draining.
const LAST_REQUEST_WITHIN: Duration = Duration::from_millis(250);
/// How long half a request may then still hold it up.
const HALF_A_REQUEST_WITHIN: Duration = Duration::from_secs(1);
/// How long accepting pauses when the system has no more descriptors.
const BREATHER: Duration = Duration::from_millis(50);
/// How often that is told.
const WARN_EVERY: Duration = Duration::from_secs(10);

/// What every worker is told.
#[derive(Clone, Debug)]
pub(crate) struct Orders {
    /// Accept no more, let requests end.
    pub(crate) drain: CancellationToken,
    /// Do not wait for requests any longer.
    pub(crate) cut: CancellationToken,
    pub(crate) connect_timeout: Duration,
}

/// The threads, as seen from outside.
#[derive(Debug)]
pub(crate) struct Workers {
    ended: mpsc::Receiver<()>,
}

impl Workers {
    /// Starts so many threads, all of which accept from the same socket: an idle one is faster
    /// than a busy one, so that new connections go where there is time for them.
    pub(crate) fn start(
        count: usize,
        listener: &TcpListener,
        shared: &Arc<Shared>,
        orders: &Orders,
    ) -> io::Result<Self> {
        let (alive, ended) = mpsc::channel(count.max(1));
        for number in 0..count.max(1) {
            let listener = listener.try_clone()?;
            let (shared, orders, alive) = (Arc::clone(shared), orders.clone(), alive.clone());
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()?;
            thread::Builder::new()
                .name(format!("llmlb-{number}"))
                .spawn(move || {
                    let worked = runtime.block_on(work(listener, shared, &orders));
                    if let Err(error) = worked {
                        tracing::error!(%error, "a worker cannot accept connections");
                    }
                    // Ends what is left of requests that were cut, and does not wait for a name
                    // server that does not answer.
                    runtime.shutdown_background();
                    drop(alive);
                })?;
        }
        Ok(Self { ended })
    }

    /// Waits until all have ended.
    pub(crate) async fn ended(&mut self) {
        while self.ended.recv().await.is_some() {}
    }
}

async fn work(listener: TcpListener, shared: Arc<Shared>, orders: &Orders) -> io::Result<()> {
    let listener = tokio::net::TcpListener::from_std(listener)?;
    let upstream = TaskTracker::new();
    let client = forward::client(orders.connect_timeout, upstream);
    let connections = TaskTracker::new();
    let serve = |stream| {
        let connection = connection(
            stream,
            Arc::clone(&shared),
            client.clone(),
            orders.drain.clone(),
        );
        connections.spawn(connection);
    };
    let mut last_warned: Option<Instant> = None;
    loop {
        let accepted = tokio::select! {
            biased;
            () = orders.drain.cancelled() => break,
            accepted = listener.accept() => accepted,
        };
        match accepted {
            Ok((stream, _)) => serve(stream),
            Err(error) if is_its_own(&error) => {}
            Err(error) => {
                if last_warned.is_none_or(|last| last.elapsed() >= WARN_EVERY) {
                    tracing::warn!(%error, "cannot accept connections; raise the limit of open files?");
                    last_warned = Some(Instant::now());
                }
                tokio::time::sleep(BREATHER).await;
            }
        }
    }
    // Those who connected before we stopped accepting are served. The kernel is asked itself: the
    // event loop may not have heard of them yet.
    let listener = listener.into_std()?;
    loop {
        match listener.accept() {
            Ok((stream, _)) => {
                let stream = stream
                    .set_nonblocking(true)
                    .and_then(|()| TcpStream::from_std(stream));
                // One that is gone already is no reason to leave the others.
                stream.map(&serve).unwrap_or_default();
            }
            Err(error) if is_its_own(&error) && error.kind() != io::ErrorKind::WouldBlock => {}
            Err(_) => break,
        }
    }
    drop(listener);
    connections.close();
    tokio::select! {
        () = connections.wait() => {}
        () = orders.cut.cancelled() => {}
    }
    Ok(())
}

/// Whether a connection could not be accepted for a reason of its own, not for lack of resources.
fn is_its_own(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::ConnectionAborted
            | io::ErrorKind::ConnectionReset
            | io::ErrorKind::Interrupted
            | io::ErrorKind::WouldBlock
    )
}

async fn connection(
    stream: TcpStream,
    shared: Arc<Shared>,
    client: Client,
    drain: CancellationToken,
) {
    let (Ok(peer), Ok(local)) = (stream.peer_addr(), stream.local_addr()) else {
        return; // It is gone already.
    };
    // The first token must not wait for the second.
    let _ = stream.set_nodelay(true);
    let requests = Counter::default();
    let caller = Arc::new(Caller {
        shared,
        client,
        peer,
        local,
        requests: requests.clone(),
    });
    let service = service_fn(move |request| request::serve(Arc::clone(&caller), request));
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_WITHIN)
        .serve_connection(TokioIo::new(stream), service);
    let mut connection = std::pin::pin!(connection);
    let time_to_end = async {
        drain.cancelled().await;
        // A request may have been sent before the client could know.
        tokio::time::sleep(LAST_REQUEST_WITHIN).await;
    };
    let served = tokio::select! {
        served = connection.as_mut() => served,
        () = time_to_end => {
            // What is being served is served to its end; half a request is not waited for.
            connection.as_mut().graceful_shutdown();
            let (is_serving, served_before) = (requests.now() > 0, requests.ever());
            match timeout(HALF_A_REQUEST_WITHIN, connection.as_mut()).await {
                Ok(served) => served,
                Err(_) if !is_serving && requests.ever() == served_before => return,
                Err(_) => connection.await,
            }
        }
    };
    if let Err(error) = served {
        tracing::debug!(%peer, %error, "a connection ended early");
    }
}
