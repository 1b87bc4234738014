//! Lifecycle of the server: starts backends, probes, workers and the exporter, and drains them on
//! a signal.

use std::io;
use std::net::TcpListener;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use tokio::sync::Notify;
use tokio::time::{sleep, sleep_until, timeout};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::atomic_duration::AtomicDuration;
use crate::balance::{Backend, IssuerQueue, Pool, PoolConfig};
use crate::config::{self, Config, ConfigStatus, Flags, env};
use crate::dashboard::{Dashboard, SpoolAccess, Stores};
use crate::data_dir;
use crate::demo;
use crate::descriptors::Division;
use crate::exporter::{self, Exporter};
use crate::forward::Via;
use crate::health::Watcher;
use crate::issuer_file::IssuerFile;
use crate::issuer_store::IssuerStore;
use crate::keys::{KeyStore, KeyTable, KeyWatch};
use crate::limits::Limiter;
use crate::memory_budget::Budget;
use crate::meter::Meter;
use crate::otlp::SpanExporter;
use crate::recent::Recent;
use crate::reload::{Reloader, Reloads};
use crate::request::{Cancelled, Counter, LineStyle, LogSink, RecentErrors};
use crate::request_settings::RequestSettings;
use crate::server::{ClientConnections, Shared, WorkerConfig, Workers};
use crate::snapshot::{SnapshotThreads, Snapshots, Sources};
use crate::sys::{self, signals::Signals};
use crate::tls::{self, TlsConfig};
use crate::upstream::{AddressLimit, Connector};

/// Interval at which a draining server reports the number of requests in flight.
const REPORT_EVERY: Duration = Duration::from_millis(500);
/// Maximum time that the shutdown waits for aborted requests to write their usage records. Only a
/// slow disk needs so long.
const ABORT_TIMEOUT: Duration = Duration::from_secs(1);

pub(crate) struct RequestLog {
    pub(crate) lines: Option<LogSink>,
    pub(crate) style: LineStyle,
}

/// Socket on which the server accepts clients, and the certificate if the port serves https.
pub(crate) struct ClientPort {
    pub(crate) listener: TcpListener,
    pub(crate) tls: Option<Arc<TlsConfig>>,
}

/// Parts that are opened before the server starts, because it must not start without them.
pub(crate) struct Opened {
    pub(crate) meter: Meter,
    pub(crate) keys: Arc<KeyTable>,
    /// Watch of `keys.json`, which applies changes of API keys; `None` without a data directory.
    pub(crate) key_watch: Option<KeyWatch>,
}

/// A running server.
pub(crate) struct App {
    pub(crate) shared: Arc<Shared>,
    workers: Workers,
    exporter: Option<Exporter>,
    spans: Option<SpanExporter>,
    /// Writer of issued ids; `None` without a data directory.
    issuer_file: Option<IssuerFile>,
    _key_watch: Option<KeyWatch>,
    _snapshots: SnapshotThreads,
    workers_config: WorkerConfig,
    /// Tasks of the probes and of the demo's backends, which the shutdown stops.
    tasks: TaskTracker,
    /// Stops the probes.
    stop_probes: CancellationToken,
    /// Cancelled to stop the demo's backends, after the last request, which may still need them.
    stop_demo: CancellationToken,
    drain_timeout: Arc<AtomicDuration>,
    reloads: Reloads,
    reloaded: Arc<Notify>,
}

#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Ended {
    /// All requests completed.
    Drained,
    /// `server.drain_timeout` expired while this many requests were in flight.
    TimedOut(usize),
    /// A second signal arrived while this many requests were in flight.
    SecondSignal(usize),
}

impl App {
    /// Starts all parts of the server. When this function returns, clients are accepted.
    pub(crate) async fn start(
        config: &Config,
        flags: &Flags,
        port: ClientPort,
        division: &Division,
        via: Via,
        log: RequestLog,
        opened: Opened,
    ) -> io::Result<Self> {
        let demo = flags.demo;
        let ClientPort { listener, tls } = port;
        let tasks = TaskTracker::new();
        let (stop_probes, stop_demo) = (CancellationToken::new(), CancellationToken::new());
        let mut demo_backends = Vec::new();
        if demo {
            let started = demo::start(&tasks, stop_demo.clone()).await?;
            demo_backends.extend(started.iter().filter_map(demo_backend));
        }
        let backends: Vec<_> = config.backends.iter().chain(&demo_backends).collect();
        let discover = backends.is_empty();
        let (pool, issuer_store, issuer_file) = start_pool(config, demo, backends)?;
        let connector = Connector::new(config.upstream.connect_timeout, division);
        if config.backends.iter().any(|one| one.url.is_https()) {
            connector.prepare_tls();
        }
        let watcher = Watcher::new(
            Arc::clone(&pool),
            connector.clone(),
            &config.upstream,
            tasks.clone(),
            stop_probes.clone(),
        );
        watcher.start().await;
        if discover {
            watcher.discover(listener.local_addr()?.port()).await;
        }
        let workers_config = worker_config(config, connector.clone(), via, log);
        let instance = opened.meter.instance().to_owned();
        let (exporter, usage) = start_exporter(config, demo, &instance)?;
        let spans = SpanExporter::start(&config.telemetry, opened.meter.instance())?;
        let limiter = start_limiter(config, demo, &opened)?;
        if let Some(tls) = &tls {
            tls.log_warnings();
            tasks.spawn(tls::watch(Arc::clone(tls), stop_probes.clone()));
        }
        let shared = shared(
            config,
            division,
            pool,
            (opened.meter, opened.keys, limiter),
            (usage, issuer_store),
            &workers_config,
            (
                listener.local_addr()?.port(),
                dashboard_stores(config, demo, &instance),
            ),
        )?;
        let queue = spans.as_ref().map(SpanExporter::queue);
        let shared = Arc::new(Shared {
            tls,
            spans: queue,
            ..shared
        });
        let data = data_dir::find(config.usage.data_dir.as_deref(), demo);
        let snapshots = shared.snapshots.start(data)?;
        let workers = Workers::start(config.server.workers, &listener, &shared, &workers_config)?;
        let drain_timeout = Arc::new(AtomicDuration::new(config.server.drain_timeout));
        let reloaded = Arc::new(Notify::new());
        let reloader = Reloader {
            running: config.clone(),
            demo: demo_backends,
            own: listener.local_addr()?,
            shared: Arc::clone(&shared),
            watcher,
            connector,
            logs_requests: Arc::clone(&workers_config.logs_requests),
            drain_timeout: Arc::clone(&drain_timeout),
            reloaded: Arc::clone(&reloaded),
        };
        let reloads = Reloads::start(reloader, flags.clone(), &tasks, stop_probes.clone())?;
        Ok(Self {
            shared,
            reloads,
            reloaded,
            workers,
            exporter,
            spans,
            issuer_file,
            _key_watch: opened.key_watch,
            _snapshots: snapshots,
            workers_config,
            tasks,
            stop_probes,
            stop_demo,
            drain_timeout,
        })
    }

    pub(crate) fn reload(&self) {
        self.reloads.request();
    }

    pub(crate) fn reloaded(&self) -> impl Future<Output = ()> + use<> {
        let reloaded = Arc::clone(&self.reloaded);
        async move { reloaded.notified().await }
    }

    pub(crate) fn drain_timeout(&self) -> Duration {
        self.drain_timeout.get()
    }

    /// Waits until every worker has ended without a drain, which is a failure of the server.
    pub(crate) async fn workers_failed(&mut self) {
        self.workers.ended().await;
    }

    /// Stops accepting connections and waits for the requests in flight. The wait ends with the last
    /// request, at `server.drain_timeout`, or at a second signal; the latter two abort the rest.
    ///
    /// Calls `report` with the number of requests in flight every `REPORT_EVERY`.
    pub(crate) async fn drain(
        mut self,
        signals: &mut Signals,
        mut report: impl FnMut(usize),
    ) -> Ended {
        self.workers_config.drain.cancel();
        let requests = self.shared.requests.clone();
        let deadline = tokio::time::Instant::now() + self.drain_timeout.get();
        let ended = loop {
            tokio::select! {
                () = self.workers.ended() => break Ended::Drained,
                () = sleep_until(deadline) => break Ended::TimedOut(requests.now()),
                _ = signals.next_stop() => break Ended::SecondSignal(requests.now()),
                () = sleep(REPORT_EVERY) => report(requests.now()),
            }
        };
        self.workers_config.abort.cancel();
        // Wait for the aborted requests: each closes its client connection and writes its usage
        // record, which would otherwise be lost.
        let _ = timeout(ABORT_TIMEOUT, self.workers.ended()).await;
        self.stop_probes.cancel();
        self.stop_demo.cancel();
        self.tasks.close();
        self.shared.meter.seal();
        self.shared.limiter.finish();
        if let Some(list) = self.shared.meter.in_flight() {
            list.close();
        }
        if let Some(store) = &self.shared.issuer_store {
            store.finish();
        }
        if let Some(file) = self.issuer_file.take() {
            file.finish();
        }
        // All records are staged, so the last export can start. After a second signal the process
        // exits without it: the records stay in staging for the next start.
        if !matches!(ended, Ended::SecondSignal(_)) {
            let (exporter, spans) = (self.exporter.take(), self.spans.take());
            let delivered = async {
                if let Some(exporter) = exporter {
                    exporter.finish(signals.next_stop()).await;
                }
            };
            let flushed = async {
                if let Some(spans) = spans {
                    spans.finish().await;
                }
            };
            tokio::join!(delivered, flushed);
        }
        ended
    }
}

fn worker_config(config: &Config, connector: Connector, via: Via, log: RequestLog) -> WorkerConfig {
    WorkerConfig {
        drain: CancellationToken::new(),
        abort: CancellationToken::new(),
        connector,
        ids: Arc::default(),
        via,
        lines: log.lines,
        line_style: log.style,
        logs_requests: Arc::new(AtomicBool::new(config.log.requests)),
    }
}

fn shared(
    config: &Config,
    division: &Division,
    pool: Arc<Pool>,
    (meter, keys, limiter): (Meter, Arc<KeyTable>, Arc<Limiter>),
    (usage, issuer_store): (Option<Arc<exporter::ExportState>>, Option<IssuerStore>),
    workers: &WorkerConfig,
    (port, stores): (u16, Stores),
) -> io::Result<Shared> {
    let server = &config.server;
    let proxies = &server.trusted_proxies;
    let (meter, requests) = (Arc::new(meter), Counter::default());
    let (started, errors) = (Instant::now(), Arc::<RecentErrors>::default());
    let snapshots = Snapshots::new(Sources {
        port,
        started,
        draining: workers.drain.clone(),
        pool: Arc::clone(&pool),
        requests: requests.clone(),
        errors: Arc::clone(&errors),
        meter: Arc::clone(&meter),
        export: usage.clone(),
        keys: Arc::clone(&keys),
        limiter: Arc::clone(&limiter),
    });
    let dashboard = Dashboard::new(Arc::clone(&pool), Arc::clone(&keys), stores)?;
    Ok(Shared {
        contention: pool.contention(server.stall_timeout),
        pool,
        requests,
        recent: Recent::new(server.workers),
        spans: None,
        connections: Arc::new(ClientConnections::new(division, proxies.clone())),
        backend_connections: Arc::clone(workers.connector.connections()),
        address_limit: Arc::new(AddressLimit::new(division, proxies.clone())),
        started,
        budget: Arc::new(Budget::new(server.body_memory)),
        tls: None,
        dropped_headers: Arc::default(),
        cancelled: Arc::new(Cancelled::new(server.max_resets)),
        keys,
        refused: Arc::default(),
        errors,
        snapshots: Arc::new(snapshots),
        meter,
        metrics: Arc::default(),
        limiter,
        config: Arc::new(ConfigStatus::new(config)),
        usage,
        issuer_store,
        draining: workers.drain.clone(),
        dashboard,
    })
}

/// Returns the files that actions of the dashboard change. The demo changes no API keys: it has none of its own.
fn dashboard_stores(config: &Config, demo: bool, instance: &str) -> Stores {
    let data = data_dir::find(config.usage.data_dir.as_deref(), demo);
    let spool = data.as_ref().filter(|_| config.usage.enabled);
    Stores {
        spool: spool.map(|data| SpoolAccess {
            data: data.clone(),
            fleet: config.fleet.clone(),
            instance: instance.to_owned(),
        }),
        keys: data.filter(|_| !demo).map(|data| KeyStore::new(&data)),
    }
}

/// Starts the limits of API keys, and reads from the data directory what the keys have spent, so
/// that a restart does not reset their budgets.
fn start_limiter(config: &Config, demo: bool, opened: &Opened) -> io::Result<Arc<Limiter>> {
    let instance = opened.meter.instance();
    let limiter = Limiter::start(&config.fleet, instance, &opened.keys)?;
    if let Some(data) =
        data_dir::find(config.usage.data_dir.as_deref(), demo).filter(|_| opened.meter.is_on())
    {
        limiter.replay(&data, instance)?;
    }
    Ok(Arc::new(limiter))
}

/// Starts the pool of backends, and what remembers which of them issued an id: the store of a fleet
/// and the file in the data directory.
fn start_pool(
    config: &Config,
    demo: bool,
    backends: Vec<&config::Backend>,
) -> io::Result<(Arc<Pool>, Option<IssuerStore>, Option<IssuerFile>)> {
    let (issued, shared_ids) = (IssuerQueue::new(), IssuerQueue::new());
    let issuer_store = IssuerStore::start(&config.fleet, Arc::clone(&shared_ids))?;
    let is_shared = issuer_store.is_some();
    let queues = [Some(Arc::clone(&issued)), is_shared.then_some(shared_ids)];
    let settings = RequestSettings::new(config, sys::host_name(env::text));
    let pool_config = PoolConfig {
        host: is_shared.then(|| sys::host_name(env::text)).flatten(),
        issuer_queues: queues.into_iter().flatten().collect(),
        ..PoolConfig::new(config, Arc::new(settings))
    };
    let backends = backends.into_iter().cloned().map(Backend::new);
    let pool = Arc::new(Pool::new(pool_config, backends));
    let issuer_file = data_dir::find(config.usage.data_dir.as_deref(), demo)
        .map(|data| IssuerFile::start(&data, issued, &pool))
        .transpose()?;
    Ok((pool, issuer_store, issuer_file))
}

/// Starts the exporter of usage records if `usage.enabled` is set. A missing data directory is
/// logged and shown in `/status`; the server still serves requests.
fn start_exporter(
    config: &Config,
    demo: bool,
    instance: &str,
) -> io::Result<(Option<Exporter>, Option<Arc<exporter::ExportState>>)> {
    let usage = &config.usage;
    if !usage.enabled {
        return Ok((None, None));
    }
    let Some(data) = data_dir::find(usage.data_dir.as_deref(), demo) else {
        let why = "no data directory: this user has no home directory; set usage.data_dir or LLMLB_DATA_DIR";
        tracing::warn!("usage: {why}");
        let to = usage.url.as_ref().map(config::Receiver::shown);
        return Ok((None, Some(Arc::new(exporter::ExportState::broken(to, why)))));
    };
    let exporter = Exporter::start(config, &data, instance)?;
    let state = exporter.state();
    Ok((Some(exporter), Some(state)))
}

fn demo_backend(backend: &demo::DemoBackend) -> Option<config::Backend> {
    let url = config::BackendUrl::parse(&format!("http://{}", backend.address)).ok()?;
    Some(config::Backend::new(backend.name.to_owned(), url))
}
