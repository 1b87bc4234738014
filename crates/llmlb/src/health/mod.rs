//! Health of backends: periodic probes of each backend, and discovery of new ones on this machine.

mod discover;
mod model_list;
mod probe;

use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use arc_swap::ArcSwap;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::backend_id::BackendId;
use crate::balance::{Backend, BackendState, Models, PlannedBackend, Pool};
use crate::config::Kind;
use crate::config::settings::UpstreamConfig;
use crate::upstream::Connector;
use discover::Discovery;
use probe::ProbeError;

pub(crate) use probe::ProbeLimits;

/// Ports of LLM servers that are not used, with the reasons that were already logged. Without this
/// map, every discovery round would log the same warnings again.
type LoggedRejections = Mutex<BTreeSet<(u16, String)>>;

/// Interval between probes of a backend that is down. It is short, so that the backend gets
/// requests soon after it recovers.
const DOWN_INTERVAL: Duration = Duration::from_secs(1);
/// Number of consecutive failed probes after which a reachable backend counts as down. A single
/// slow response of a busy backend must not mark it down.
const MAX_FAILED_PROBES: u32 = 3;
/// Maximum time for which the start of the server waits for the first probes. Backends that respond
/// later are used then.
const STARTUP_TIMEOUT: Duration = Duration::from_millis(1500);
/// Interval between searches for LLM servers on the default ports of this machine.
const DISCOVERY_INTERVAL: Duration = Duration::from_secs(10);

/// Probes backends and keeps their state in the pool up to date.
#[derive(Clone)]
pub(crate) struct Watcher {
    pub(crate) pool: Arc<Pool>,
    pub(crate) connector: Connector,
    settings: Arc<ArcSwap<ProbeSettings>>,
    tasks: TaskTracker,
    stop: CancellationToken,
    /// Running probes, one loop for each backend.
    probes: Arc<Mutex<HashMap<BackendId, Probes>>>,
    /// Token that ends the search for LLM servers on this machine. `None` while there is no search.
    discovery: Arc<Mutex<Option<CancellationToken>>>,
}

#[derive(Clone, Copy, Debug)]
struct ProbeSettings {
    interval: Duration,
    limits: ProbeLimits,
}

/// The probe loop of one backend.
#[derive(Debug)]
struct Probes {
    backend: Arc<Backend>,
    /// Ends the probes.
    stop: CancellationToken,
}

impl From<&UpstreamConfig> for ProbeSettings {
    fn from(config: &UpstreamConfig) -> Self {
        Self {
            interval: config.probe_interval,
            limits: ProbeLimits {
                timeout: config.probe_timeout,
                models: config.max_models,
            },
        }
    }
}

impl Watcher {
    pub(crate) fn new(
        pool: Arc<Pool>,
        connector: Connector,
        config: &UpstreamConfig,
        tasks: TaskTracker,
        stop: CancellationToken,
    ) -> Self {
        Self {
            pool,
            connector,
            settings: Arc::new(ArcSwap::from_pointee(config.into())),
            tasks,
            stop,
            probes: Arc::default(),
            discovery: Arc::default(),
        }
    }

    /// Changes the interval and limits of probes after a reload of the configuration.
    pub(crate) fn set_limits(&self, config: &UpstreamConfig) {
        self.settings.store(Arc::new(config.into()));
    }

    fn settings(&self) -> ProbeSettings {
        **self.settings.load()
    }

    /// Probes every backend once, so that models are known when the server starts, and continues in
    /// the background.
    pub(crate) async fn start(&self) {
        let backends = self.pool.table().backends.clone();
        let first = TaskTracker::new();
        for backend in &backends {
            let (watcher, backend) = (self.clone(), Arc::clone(backend));
            first.spawn(async move { watcher.probe(&backend, &mut 0).await });
        }
        first.close();
        // Do not wait for a backend that does not respond in time: its own loop probes it again.
        let _ = timeout(STARTUP_TIMEOUT, first.wait()).await;
        for backend in backends {
            if backend.state() == BackendState::not_probed() {
                let (name, url) = (&backend.name, &backend.url);
                tracing::warn!("backend {name} at {url} has not responded to its first probe yet");
            }
        }
        self.follow();
    }

    /// Probes the backends of a new configuration that are new, were removed earlier or have new
    /// settings. Their models are then known when requests can reach them.
    pub(crate) async fn probe_planned(&self, planned: &mut [PlannedBackend]) {
        let table = self.pool.table();
        let current = table.backends.iter().map(|one| (one.id, one));
        let current: HashMap<BackendId, &Arc<Backend>> = current.collect();
        let is_current = |backend: &Arc<Backend>| {
            let current = current.get(&backend.id);
            current.is_some_and(|one| Arc::ptr_eq(one, backend))
        };
        // Dropping the set of probes ends those that have not succeeded in time.
        let mut probes = JoinSet::new();
        let changed = planned.iter_mut().enumerate();
        for (index, planned) in changed.filter(|(_, one)| !is_current(&one.backend)) {
            if planned.is_new || planned.backend.is_removed() {
                planned.state = Some(BackendState::not_probed());
            }
            let (watcher, backend) = (self.clone(), Arc::clone(&planned.backend));
            probes.spawn(async move {
                let limits = watcher.settings().limits;
                let result = probe::probe(&backend, &watcher.connector, limits).await;
                (index, result)
            });
        }
        let results = async {
            while let Some(Ok((index, result))) = probes.join_next().await {
                let PlannedBackend { backend, state, .. } = &mut planned[index];
                match result {
                    Ok(response) => {
                        if let Some(kind) = discover::kind(&response) {
                            backend.note_kind(kind);
                        }
                        *state = Some(BackendState::Up(Arc::new(response.models)));
                    }
                    // Keep the state of a backend that is in use although this probe failed: its
                    // regular probes decide if it is down.
                    Err(_) if state.is_none() => {}
                    Err(error) => *state = Some(BackendState::Down(error.why().to_owned())),
                }
            }
        };
        let _ = timeout(STARTUP_TIMEOUT, results).await;
    }

    /// Starts the probes of backends that have none, or new settings, and ends those of removed backends.
    pub(crate) fn follow(&self) {
        let table = self.pool.table();
        let mut probes = lock(&self.probes);
        let mut before = std::mem::take(&mut *probes);
        for backend in &table.backends {
            let running = before.remove(&backend.id);
            let running = running.filter(|one| {
                let is_same = Arc::ptr_eq(&one.backend, backend);
                if !is_same {
                    one.stop.cancel();
                }
                is_same
            });
            let running = running.unwrap_or_else(|| self.spawn_probes(Arc::clone(backend)));
            probes.insert(backend.id, running);
        }
        for removed in before.into_values() {
            removed.stop.cancel();
        }
    }

    /// Starts or ends the search for LLM servers on this machine, after a reload of the configuration.
    pub(crate) fn set_discovery(&self, is_on: bool, own_port: u16) {
        let mut discovery = lock(&self.discovery);
        match (&*discovery, is_on) {
            (Some(stop), false) => {
                stop.cancel();
                *discovery = None;
            }
            (None, true) => {
                let stop = self.stop.child_token();
                *discovery = Some(stop.clone());
                let watcher = self.clone();
                self.tasks.spawn(async move {
                    let search = watcher.search(own_port, Arc::default(), Duration::ZERO);
                    stop.run_until_cancelled(search).await;
                });
            }
            _ => {}
        }
    }

    /// Searches this machine for LLM servers now, and then every `DISCOVERY_INTERVAL`.
    pub(crate) async fn discover(&self, own_port: u16) {
        let logged = Arc::new(LoggedRejections::default());
        let first = TaskTracker::new();
        for usual in default_ports_except(own_port) {
            let (watcher, logged) = (self.clone(), Arc::clone(&logged));
            first.spawn(async move { watcher.discover_on(usual, &logged).await });
        }
        first.close();
        // The start does not wait for a server that responds late: it is added to the pool when its
        // probe completes.
        let _ = timeout(STARTUP_TIMEOUT, first.wait()).await;
        let has_rejected = !logged
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .is_empty();
        if self.pool.table().backends.is_empty() && !has_rejected {
            let ports = discover::DEFAULT_PORTS.map(|(port, name)| format!("{port} ({name})"));
            tracing::warn!(
                "found no LLM server on this machine (ports {}); searching again every {} s. \
                 Start one, name one with --backend URL, or try --demo",
                ports.join(", "),
                DISCOVERY_INTERVAL.as_secs()
            );
        }
        let stop = self.stop.child_token();
        *lock(&self.discovery) = Some(stop.clone());
        let watcher = self.clone();
        self.tasks.spawn(async move {
            let search = watcher.search(own_port, logged, DISCOVERY_INTERVAL);
            stop.run_until_cancelled(search).await;
        });
    }

    /// Searches this machine for LLM servers repeatedly, for the first time after `pause`.
    async fn search(&self, own_port: u16, logged: Arc<LoggedRejections>, mut pause: Duration) {
        loop {
            sleep(pause).await;
            for usual in default_ports_except(own_port) {
                self.discover_on(usual, &logged).await;
            }
            pause = DISCOVERY_INTERVAL;
        }
    }

    async fn discover_on(&self, usual: (u16, &'static str), logged: &LoggedRejections) {
        let limits = self.settings().limits;
        match discover::discover(usual, &self.pool, &self.connector, limits).await {
            Discovery::Nothing => {}
            Discovery::Foreign(why) => {
                let (port, _) = usual;
                let mut logged = logged.lock().unwrap_or_else(PoisonError::into_inner);
                if logged.insert((port, why.clone())) {
                    let url = format!("http://127.0.0.1:{port}");
                    tracing::warn!(
                        "not using the LLM server at {url}: {why}; name it with --backend {url} \
                         if that is intended"
                    );
                }
            }
            Discovery::Added {
                backend,
                is_checked,
            } => {
                if let BackendState::Up(models) = backend.state() {
                    let models = discover::in_short(&models);
                    let note = if is_checked {
                        ""
                    } else {
                        " (owner not checked: this system does not report which user runs a server)"
                    };
                    tracing::info!("found {} at {}, {models}{note}", backend.name, backend.url);
                }
                self.follow();
            }
        }
    }

    /// Starts a task that probes a backend periodically until the probes are stopped.
    fn spawn_probes(&self, backend: Arc<Backend>) -> Probes {
        let stop = self.stop.child_token();
        let probes = Probes {
            backend: Arc::clone(&backend),
            stop: stop.clone(),
        };
        let watcher = self.clone();
        self.tasks.spawn(async move {
            let probing = watcher.probe_periodically(&backend);
            stop.run_until_cancelled(probing).await;
        });
        probes
    }

    async fn probe_periodically(&self, backend: &Backend) {
        let mut failed_probes = 0;
        loop {
            let interval = self.settings().interval;
            let pause = if backend.responds() && failed_probes == 0 {
                interval
            } else {
                interval.min(DOWN_INTERVAL)
            };
            tokio::select! {
                () = sleep(pause) => {}
                // Every failed request triggers a recheck. A short delay combines the rechecks of
                // many requests into one probe.
                () = backend.health.recheck.notified() => sleep(DOWN_INTERVAL / 4).await,
            }
            self.probe(backend, &mut failed_probes).await;
        }
    }

    /// Probes one backend and updates its state in the pool.
    async fn probe(&self, backend: &Backend, failed_probes: &mut u32) {
        match probe::probe(backend, &self.connector, self.settings().limits).await {
            Ok(response) => {
                *failed_probes = 0;
                backend.health.set_hung(false);
                backend.set_refuses_connections(false);
                backend.health.note_response();
                backend.health.set_rejected_key(None);
                if let Some(kind) = discover::kind(&response) {
                    backend.note_kind(kind);
                }
                self.note_up(backend, &Arc::new(response.models), response.total);
            }
            Err(ProbeError::LocalFault(why)) => tracing::debug!("backend {}: {why}", backend.name),
            Err(failure) => {
                let was_active = backend.health.take_active();
                *failed_probes = match failure {
                    // Restart the count of failed probes: the probe timed out, but the backend
                    // responded to requests meanwhile, so it is busy and not down.
                    ProbeError::Timeout(_) if was_active => 1,
                    _ => *failed_probes + 1,
                };
                let is_repeated = *failed_probes >= MAX_FAILED_PROBES;
                let is_reachable = !matches!(
                    failure,
                    ProbeError::ConnectionRefused(_)
                        | ProbeError::HostUnreachable(_)
                        | ProbeError::OtherUser(_)
                );
                if backend.responds() && is_reachable && !is_repeated {
                    tracing::debug!(backend = backend.name, "probe failed: {}", failure.why());
                    return;
                }
                match failure {
                    ProbeError::ConnectionRefused(_) => backend.set_refuses_connections(true),
                    // Keep the note about refused connections: the backend accepted a connection
                    // and then closed it, which proves nothing about them.
                    ProbeError::Closed(_) => {}
                    _ => backend.set_refuses_connections(false),
                }
                backend.health.set_rejected_key(match failure {
                    ProbeError::KeyRejected(status, _) => Some(status),
                    _ => None,
                });
                self.pool.mark_down(backend, failure.why());
                // Mark a silent backend as hung, so that requests that wait for its response are
                // retried on another backend.
                let is_silent = matches!(
                    failure,
                    ProbeError::Timeout(_) | ProbeError::HostUnreachable(_)
                );
                backend.health.set_hung(is_silent && is_repeated);
            }
        }
    }

    fn note_up(&self, backend: &Backend, models: &Arc<Models>, total: usize) {
        let (name, url) = (&backend.name, &backend.url);
        let summary = discover::in_short(models);
        match self
            .pool
            .set_state(backend, BackendState::Up(Arc::clone(models)))
        {
            BackendState::Down(_) => tracing::info!("backend {name} at {url} is up, {summary}"),
            BackendState::Up(before) if before != *models => {
                tracing::info!("backend {name} at {url} now serves {summary}");
            }
            BackendState::Up(_) => return,
        }
        let max = self.settings().limits.models;
        if total > max && backend.settings.fixed_models.is_none() {
            tracing::warn!(
                "backend {name} at {url} lists {total} models; only the first {max} are used \
                 (upstream.max_models)"
            );
        }
    }
}

/// Models and kind of a backend, for `llmlb check --ask`.
#[derive(Debug)]
pub(crate) struct Reply {
    pub(crate) models: Models,
    pub(crate) kind: Option<Kind>,
}

/// Requests the models of a backend, for `llmlb check --ask`. The error is the reason, for display.
pub(crate) async fn ask(
    backend: &Backend,
    connector: &Connector,
    limits: ProbeLimits,
) -> Result<Reply, String> {
    match probe::probe(backend, connector, limits).await {
        Ok(response) => Ok(Reply {
            kind: backend.kind().or_else(|| discover::kind(&response)),
            models: response.models,
        }),
        Err(error) => Err(error.why().to_owned()),
    }
}

/// Returns the default ports of LLM servers without this server's own port, which would otherwise
/// be discovered as a backend.
fn default_ports_except(own_port: u16) -> impl Iterator<Item = (u16, &'static str)> {
    discover::DEFAULT_PORTS
        .into_iter()
        .filter(move |(port, _)| *port != own_port)
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
