//! Worker threads, which serve requests. Each has its own event loop and its own connections to backends, so
//! that workers do not contend for locks.

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::thread;
use std::time::{Duration, Instant};

use tokio::net::TcpStream;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::connection;
use super::shared::Shared;
use crate::forward::{ForwardContext, Via};
use crate::meter::CommitGroup;
use crate::request::{AccessLog, Accounting, Ids, LineStyle, LogSink};
use crate::upstream::Connector;

/// Pause after a failed accept, for example for lack of file descriptors, so that the worker does
/// not repeat it without end at full CPU.
const ACCEPT_BACKOFF: Duration = Duration::from_millis(50);
/// Interval at which a worker closes connections to backends that have been idle for too long.
const SWEEP_EVERY: Duration = Duration::from_secs(1);
/// Maximum time for which a line of the access log is buffered.
const LINES_WITHIN: Duration = Duration::from_millis(100);

/// Settings of a worker.
#[derive(Clone)]
pub(crate) struct WorkerConfig {
    /// Cancelled when the server drains: the workers then accept no more connections.
    pub(crate) drain: CancellationToken,
    /// Cancelled when the shutdown must abort the requests in flight, for example after a second
    /// signal.
    pub(crate) abort: CancellationToken,
    pub(crate) connector: Connector,
    pub(crate) ids: Arc<Ids>,
    /// This server's entry in the header field `Via` of every forwarded request. A request that
    /// arrives with this entry has already passed through this server and is rejected as a loop.
    pub(crate) via: Via,
    /// Function that writes lines of the access log; `None` with `-q`.
    pub(crate) lines: Option<LogSink>,
    /// Format of the lines of the access log.
    pub(crate) line_style: LineStyle,
    /// True while the access log is on (`log.requests`).
    pub(crate) logs_requests: Arc<AtomicBool>,
}

/// State of one worker thread, which its requests share.
#[derive(Debug)]
pub(crate) struct Worker {
    pub(crate) shared: Arc<Shared>,
    pub(crate) forwarding: Arc<ForwardContext>,
}

impl Worker {
    /// Returns the state of a worker. Tasks of connections and tunnels are spawned on `tasks`. The
    /// thread waits for `tasks` before it ends, because the end of the thread aborts all tasks and
    /// their requests.
    fn new(shared: Arc<Shared>, number: usize, config: &WorkerConfig, tasks: TaskTracker) -> Self {
        let accounting = Arc::new(Accounting {
            ids: Arc::clone(&config.ids),
            address_limit: Arc::clone(&shared.address_limit),
            cancelled: Arc::clone(&shared.cancelled),
            meter: Arc::clone(&shared.meter),
            refused: Arc::clone(&shared.refused),
            errors: Arc::clone(&shared.errors),
            commits: CommitGroup::new(Arc::clone(&shared.meter)),
            access_log: AccessLog::new(
                config.lines.clone(),
                config.line_style,
                Arc::clone(&config.logs_requests),
            ),
            metrics: shared.metrics.add_worker(),
            recent: shared.recent.shard(number),
            spans: shared.spans.clone(),
            abort: config.abort.clone(),
        });
        let forwarding = Arc::new(ForwardContext {
            accounting,
            pool: Arc::clone(&shared.pool),
            connector: config.connector.clone(),
            idle: Arc::default(),
            contention: shared.contention.clone(),
            budget: Arc::clone(&shared.budget),
            via: config.via.clone(),
            dropped_headers: Arc::clone(&shared.dropped_headers),
            tasks,
        });
        Self { shared, forwarding }
    }

    pub(crate) fn accounting(&self) -> &Arc<Accounting> {
        &self.forwarding.accounting
    }
}

/// Handle of the worker threads, through which the server waits for their end.
#[derive(Debug)]
pub(crate) struct Workers {
    ended: mpsc::Receiver<()>,
}

impl Workers {
    /// Starts the worker threads. All accept from the same socket. An idle worker accepts sooner
    /// than a busy one, so new connections go to idle workers.
    pub(crate) fn start(
        count: usize,
        listener: &TcpListener,
        shared: &Arc<Shared>,
        config: &WorkerConfig,
    ) -> io::Result<Self> {
        let (alive, ended) = mpsc::channel(count.max(1));
        for number in 0..count.max(1) {
            let listener = listener.try_clone()?;
            let (shared, config, alive) = (Arc::clone(shared), config.clone(), alive.clone());
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()?;
            thread::Builder::new()
                .name(format!("llmlb-{number}"))
                .spawn(move || {
                    let worked = runtime.block_on(work(listener, shared, number, &config));
                    if let Err(error) = worked {
                        tracing::error!(%error, "worker thread cannot accept connections");
                    }
                    // `shutdown_background` drops the tasks of aborted requests. Unlike a drop of the
                    // runtime, it does not wait for blocked DNS lookups.
                    runtime.shutdown_background();
                    drop(alive);
                })?;
        }
        Ok(Self { ended })
    }

    pub(crate) async fn ended(&mut self) {
        while self.ended.recv().await.is_some() {}
    }
}

async fn work(
    listener: TcpListener,
    shared: Arc<Shared>,
    number: usize,
    config: &WorkerConfig,
) -> io::Result<()> {
    let listener = tokio::net::TcpListener::from_std(listener)?;
    let connections = TaskTracker::new();
    let worker = Arc::new(Worker::new(shared, number, config, connections.clone()));
    let idle = &worker.forwarding.idle;
    worker.shared.backend_connections.add_idle(idle);
    let upkeep = TaskTracker::new();
    upkeep.spawn(housekeeping(Arc::clone(&worker)));
    let accounting = Arc::clone(worker.accounting());
    upkeep.spawn(async move { accounting.commits.run().await });
    let serve = |stream: TcpStream, peer: SocketAddr| {
        let admission = &worker.shared.connections;
        match admission.admit(peer.ip()) {
            Ok(admitted) => {
                let (worker, drain) = (Arc::clone(&worker), config.drain.clone());
                connections.spawn(connection::serve(stream, peer, admitted, worker, drain));
            }
            Err(rejected) => {
                let is_https = worker.shared.tls.is_some();
                admission.reject(&stream, peer.ip(), rejected, is_https);
            }
        }
    };
    loop {
        let accepted = tokio::select! {
            biased;
            () = config.drain.cancelled() => break,
            accepted = listener.accept() => accepted,
        };
        match accepted {
            Ok((stream, peer)) => serve(stream, peer),
            Err(error) if is_connection_error(&error) => {}
            Err(error) => {
                worker.shared.connections.accept_failed(&error);
                tokio::time::sleep(ACCEPT_BACKOFF).await;
            }
        }
    }
    // Accept clients that connected before accepting stopped. Ask the kernel directly, since the
    // event loop may not know of these connections yet.
    let listener = listener.into_std()?;
    loop {
        match listener.accept() {
            Ok((stream, peer)) => {
                let stream = stream
                    .set_nonblocking(true)
                    .and_then(|()| TcpStream::from_std(stream));
                // Ignore a client that has disconnected already. It must not keep the clients
                // behind it from being served.
                stream.map(|stream| serve(stream, peer)).unwrap_or_default();
            }
            Err(error)
                if is_connection_error(&error) && error.kind() != io::ErrorKind::WouldBlock => {}
            Err(_) => break,
        }
    }
    drop(listener);
    connections.close();
    tokio::select! {
        () = connections.wait() => {}
        () = config.abort.cancelled() => {}
    }
    worker.accounting().commits.flush();
    Ok(())
}

/// True if accepting failed because of the connection itself, such as a client that disconnected,
/// and not for lack of resources. The next accept then needs no pause.
fn is_connection_error(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::ConnectionAborted
            | io::ErrorKind::ConnectionReset
            | io::ErrorKind::Interrupted
            | io::ErrorKind::WouldBlock
    )
}

/// Periodically flushes the access log, closes idle connections to backends, and logs the end of rejections.
async fn housekeeping(worker: Arc<Worker>) {
    let mut last_sweep = Instant::now();
    loop {
        tokio::time::sleep(LINES_WITHIN).await;
        worker.accounting().access_log.flush();
        if last_sweep.elapsed() >= SWEEP_EVERY {
            worker.forwarding.idle.sweep();
            worker.shared.connections.check_end();
            worker.shared.budget.check_end();
            worker.shared.backend_connections.check_end();
            worker.shared.address_limit.check_end();
            last_sweep = Instant::now();
        }
    }
}
