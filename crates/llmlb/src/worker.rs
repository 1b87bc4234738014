//! The threads that serve requests: each has its own event loop and its own connections to the
//! backends, so that they need not wait for one another.

use std::io;
use std::net::TcpListener;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::TcpStream;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::app::Shared;
use crate::forward::{self, Client};
use crate::request;

/// How long a client may take to send a request's head; idle connections are closed after it too.
const HEAD_WITHIN: Duration = Duration::from_secs(75);
/// How long a connection that has just been made may still bring its first request, once the server
/// is draining.
const FIRST_REQUEST_WITHIN: Duration = Duration::from_millis(250);
/// How long accepting pauses when the system has no more descriptors.
const BREATHER: Duration = Duration::from_millis(50);

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
    loop {
        let accepted = tokio::select! {
            biased;
            () = orders.drain.cancelled() => break,
            accepted = listener.accept() => accepted,
        };
        match accepted {
            Ok((stream, _)) => serve(stream),
            Err(error) => after(error).await,
        }
    }
    // Those who connected before we stopped accepting are served. The kernel is asked itself: the
    // event loop may not have heard of them yet.
    let listener = listener.into_std()?;
    while let Ok((stream, _)) = listener.accept() {
        stream.set_nonblocking(true)?;
        serve(TcpStream::from_std(stream)?);
    }
    drop(listener);
    connections.close();
    tokio::select! {
        () = connections.wait() => {}
        () = orders.cut.cancelled() => {}
    }
    Ok(())
}

/// Whether a connection could not be accepted for a reason of its own, or for lack of resources.
async fn after(error: io::Error) {
    let its_own = matches!(
        error.kind(),
        io::ErrorKind::ConnectionAborted
            | io::ErrorKind::ConnectionReset
            | io::ErrorKind::Interrupted
            | io::ErrorKind::WouldBlock
    );
    if !its_own {
        tracing::warn!(%error, "cannot accept a connection; raise the limit of open files?");
        tokio::time::sleep(BREATHER).await;
    }
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
    let asked = Arc::new(AtomicBool::new(false));
    let has_asked = Arc::clone(&asked);
    let service = service_fn(move |request| {
        asked.store(true, Ordering::Relaxed);
        request::serve(Arc::clone(&shared), client.clone(), (peer, local), request)
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_WITHIN)
        .serve_connection(TokioIo::new(stream), service);
    let mut connection = std::pin::pin!(connection);
    let time_to_end = async {
        drain.cancelled().await;
        // Its request may have arrived before we stopped accepting, and not be read yet.
        if !has_asked.load(Ordering::Relaxed) {
            tokio::time::sleep(FIRST_REQUEST_WITHIN).await;
        }
    };
    let served = tokio::select! {
        served = connection.as_mut() => served,
        () = time_to_end => {
            // A request that is being served is served to its end.
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
    if let Err(error) = served {
        tracing::debug!(%peer, %error, "a connection ended early");
    }
}
