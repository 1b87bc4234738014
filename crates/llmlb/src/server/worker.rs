//! The threads that serve requests: each has its own event loop and its own connections to the
//! backends, so that they need not wait for one another.

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::pin::Pin;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use hyper::service::service_fn;
use tokio::net::TcpStream;
use tokio::sync::mpsc;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::client_http;
use super::client_io::{ClientIo, Unsent};
use super::client_memory::ClientMemory;
use super::connections::Admitted;
use super::h2_answers::{Answers, StreamWatch};
use super::h2_idle::Streams;
use super::h2_unfinished::UnfinishedHead;
use super::protocol::{self, Protocol};
use crate::app::Shared;
use crate::meter::Batch;
use crate::request::{self, Caller, Counter, Journal, Lines};
use crate::upstream::{Connector, Idle};

/// How long a connection may still bring a request, once the server is draining.
const LAST_REQUEST_WITHIN: Duration = Duration::from_millis(250);
/// How long half a request may then still hold it up.
const HALF_A_REQUEST_WITHIN: Duration = Duration::from_secs(1);
/// How long accepting pauses when the system has no more descriptors.
const BREATHER: Duration = Duration::from_millis(50);
/// How often a worker closes connections that nobody uses.
const SWEEP_EVERY: Duration = Duration::from_secs(1);
/// How long a line of the log may wait for others.
const LINES_WITHIN: Duration = Duration::from_millis(100);

/// What every worker is told.
#[derive(Clone)]
pub(crate) struct Orders {
    /// Accept no more, let requests end.
    pub(crate) drain: CancellationToken,
    /// Do not wait for requests any longer.
    pub(crate) cut: CancellationToken,
    pub(crate) connector: Connector,
    /// Where a line for each request goes, and whether it begins with the time.
    pub(crate) lines: Option<Lines>,
    pub(crate) timed: bool,
}

/// What the requests of one thread have in common.
#[derive(Debug)]
pub(crate) struct Worker {
    pub(crate) shared: Arc<Shared>,
    pub(crate) connector: Connector,
    pub(crate) idle: Arc<Idle>,
    pub(crate) journal: Journal,
    /// Records that are to be kept.
    pub(crate) batch: Batch,
    /// Connections, and whatever else must end before the thread does.
    pub(crate) tasks: TaskTracker,
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
    let connections = TaskTracker::new();
    let worker = Arc::new(Worker {
        shared,
        connector: orders.connector.clone(),
        idle: Arc::default(),
        journal: Journal::new(orders.lines.clone(), orders.timed),
        batch: Batch::default(),
        tasks: connections.clone(),
    });
    worker.shared.backend_connections.add_idle(&worker.idle);
    let upkeep = TaskTracker::new();
    upkeep.spawn(keep_up(Arc::clone(&worker)));
    let keeper = Arc::clone(&worker);
    upkeep.spawn(async move { keeper.batch.keep_up(&keeper.shared.meter).await });
    let serve = |stream: TcpStream, peer: SocketAddr| {
        let admission = &worker.shared.connections;
        match admission.admit(peer.ip()) {
            Ok(admitted) => {
                let (worker, drain) = (Arc::clone(&worker), orders.drain.clone());
                connections.spawn(connection(stream, peer, admitted, worker, drain));
            }
            Err(rejected) => admission.reject(&stream, peer.ip(), rejected),
        }
    };
    loop {
        let accepted = tokio::select! {
            biased;
            () = orders.drain.cancelled() => break,
            accepted = listener.accept() => accepted,
        };
        match accepted {
            Ok((stream, peer)) => serve(stream, peer),
            Err(error) if is_its_own(&error) => {}
            Err(error) => {
                worker.shared.connections.accept_failed(&error);
                tokio::time::sleep(BREATHER).await;
            }
        }
    }
    // Those who connected before we stopped accepting are served. The kernel is asked itself: the
    // event loop may not have heard of them yet.
    let listener = listener.into_std()?;
    loop {
        match listener.accept() {
            Ok((stream, peer)) => {
                let stream = stream
                    .set_nonblocking(true)
                    .and_then(|()| TcpStream::from_std(stream));
                // One that is gone already is no reason to leave the others.
                stream.map(|stream| serve(stream, peer)).unwrap_or_default();
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
    worker.batch.flush(&worker.shared.meter);
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

/// Small work that must not wait for a request.
async fn keep_up(worker: Arc<Worker>) {
    let mut last_sweep = Instant::now();
    loop {
        tokio::time::sleep(LINES_WITHIN).await;
        worker.journal.flush();
        if last_sweep.elapsed() >= SWEEP_EVERY {
            worker.idle.sweep();
            worker.shared.connections.check_end();
            worker.shared.bodies.check_end();
            worker.shared.backend_connections.check_end();
            worker.shared.address_limit.check_end();
            last_sweep = Instant::now();
        }
    }
}

async fn connection(
    stream: TcpStream,
    peer: SocketAddr,
    admitted: Admitted,
    worker: Arc<Worker>,
    drain: CancellationToken,
) {
    let Ok(local) = stream.local_addr() else {
        return; // It is gone already.
    };
    let budget = Arc::clone(&worker.shared.bodies);
    let Some(memory) = ClientMemory::new(&budget) else {
        budget.note_refusal();
        return;
    };
    let requests = Counter::default();
    let tasks = worker.tasks.clone();
    let limits = worker.shared.limits;
    let http = worker.shared.http;
    let contention = worker.shared.contention.clone();
    let caller = Arc::new(Caller {
        is_proxy: worker.shared.proxies.contains(peer.ip()),
        worker,
        peer,
        local,
        requests: requests.clone(),
        memory: Arc::clone(&memory),
    });
    let protocol = tokio::select! {
        protocol = timeout(http.idle, protocol::of(&stream)) => protocol,
        () = drained(&drain) => return,
    };
    let served_caller = Arc::clone(&caller);
    let service = service_fn(move |request| request::serve(Arc::clone(&served_caller), request));
    let heads = matches!(protocol, Ok(Protocol::Http1)).then(|| Arc::clone(&memory));
    let unfinished = matches!(protocol, Ok(Protocol::Http2))
        .then(|| UnfinishedHead::new(&budget, http.max_header));
    let stream = ClientIo::new(
        stream,
        limits.send,
        contention.clone(),
        admitted,
        heads,
        unfinished,
    );
    let unsent = stream.unsent();
    let served = match protocol {
        Ok(Protocol::Http1) => {
            let mut connection = client_http::http1(&http)
                .serve_connection(stream, service)
                .with_upgrades();
            let pinned = Pin::new(&mut connection);
            let served = until_drained(pinned, &requests, &unsent, &drain, None, |connection| {
                connection.graceful_shutdown();
            })
            .await;
            let unread = || connection.into_parts().map(|parts| parts.read_buf);
            request::unparsed::log(&caller, &served, unread);
            served
        }
        Ok(Protocol::Http2) => {
            let streams = Streams::default();
            let watch = StreamWatch::new(
                &budget,
                limits.send,
                limits.body.rate,
                contention,
                limits.max_resets,
            );
            let farewell = stream.farewell();
            let executor = Answers {
                tasks,
                streams: streams.clone(),
                watch: Arc::clone(&watch),
            };
            let connection = client_http::http2(&http, executor).serve_connection(stream, service);
            let connection = std::pin::pin!(connection);
            let streams = Some((&streams, http.idle));
            let served = until_drained(
                connection,
                &requests,
                &unsent,
                &drain,
                streams,
                |connection| {
                    connection.graceful_shutdown();
                },
            );
            tokio::select! {
                served = served => served,
                violation = watch.violation() => {
                    let reason = violation.reason();
                    tracing::debug!(%peer, "closed a connection: {reason}");
                    farewell.set(reason);
                    Ok(())
                }
            }
        }
        // It said nothing, or left.
        Ok(Protocol::None) | Err(_) => return,
    };
    if let Err(error) = served {
        tracing::debug!(%peer, %error, "a connection ended early");
    }
}

async fn drained(drain: &CancellationToken) {
    drain.cancelled().await;
    // A request may have been sent before the client could know.
    tokio::time::sleep(LAST_REQUEST_WITHIN).await;
}

/// Serves a connection to its end; once the server drains, what is being served is served to its
/// end, and half a request is not waited for.
async fn until_drained<C: Future<Output = hyper::Result<()>>>(
    mut connection: Pin<&mut C>,
    requests: &Counter,
    unsent: &Unsent,
    drain: &CancellationToken,
    streams: Option<(&Streams, Duration)>,
    shut_down: impl FnOnce(Pin<&mut C>),
) -> hyper::Result<()> {
    let idle = async {
        match streams {
            Some((streams, limit)) => streams.idle(limit).await,
            // hyper closes idle connections of HTTP/1.1 itself.
            None => std::future::pending().await,
        }
    };
    tokio::select! {
        served = connection.as_mut() => served,
        () = drained(drain) => {
            shut_down(connection.as_mut());
            let (is_serving, served_before) = (requests.now() > 0, requests.ever());
            match timeout(HALF_A_REQUEST_WITHIN, connection.as_mut()).await {
                Ok(served) => served,
                Err(_)
                    if !is_serving && requests.ever() == served_before && !unsent.is_so() =>
                {
                    Ok(())
                }
                Err(_) => connection.await,
            }
        }
        () = idle => {
            shut_down(connection.as_mut());
            loop {
                // The client may have sent a request before it knew; and it need not confirm.
                match timeout(HALF_A_REQUEST_WITHIN, connection.as_mut()).await {
                    Ok(served) => break served,
                    Err(_) if streams.is_none_or(|(streams, _)| streams.is_empty()) => break Ok(()),
                    Err(_) => {}
                }
            }
        }
    }
}
