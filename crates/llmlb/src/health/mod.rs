//! Health of backends: periodic probes of each backend, and discovery of new ones on this machine.

mod discover;
mod model_list;
mod probe;

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::balance::{Backend, BackendState, Models, Pool};
use crate::upstream::Connector;
use discover::Discovery;
use probe::ProbeError;

pub(crate) use probe::ProbeLimits;

/// Ports and reasons of servers that are not used and were already logged. Without it, every
/// discovery round would log the same warning again.
type LoggedRejections = Mutex<BTreeSet<(u16, String)>>;

/// Interval between probes of a backend that is down. It is short, so that the backend gets
/// requests soon after it recovers.
const DOWN_INTERVAL: Duration = Duration::from_secs(1);
/// Number of consecutive failed probes after which a reachable backend counts as down. A single
/// slow response of a busy backend must not mark it down.
const MAX_FAILED_PROBES: u32 = 3;
/// Maximum time that the start waits for the first probes.
const STARTUP_TIMEOUT: Duration = Duration::from_millis(1500);
/// Interval between searches for LLM servers on the default ports of this machine.
const DISCOVERY_INTERVAL: Duration = Duration::from_secs(10);

/// Probes backends and keeps their state in the pool up to date.
#[derive(Clone)]
pub(crate) struct Watcher {
    pub(crate) pool: Arc<Pool>,
    pub(crate) connector: Connector,
    pub(crate) interval: Duration,
    pub(crate) limits: ProbeLimits,
    pub(crate) tasks: TaskTracker,
    pub(crate) stop: CancellationToken,
}

impl Watcher {
    /// Probes every backend once, then continues in the background.
    pub(crate) async fn start(&self) {
        let backends = self.pool.table().backends.clone();
        let first = TaskTracker::new();
        for backend in &backends {
            let (watcher, backend) = (self.clone(), Arc::clone(backend));
            first.spawn(async move { watcher.probe(&backend, &mut 0).await });
        }
        first.close();
        // A backend that does not respond in time is probed again by its own loop.
        let _ = timeout(STARTUP_TIMEOUT, first.wait()).await;
        for backend in backends {
            if backend.state() == BackendState::not_probed() {
                let (name, url) = (&backend.name, &backend.url);
                tracing::warn!("backend {name} at {url} has not responded to its first probe yet");
            }
            self.spawn_probes(backend);
        }
    }

    /// Searches this machine for LLM servers, now and every `DISCOVERY_INTERVAL`.
    pub(crate) async fn discover(&self, own_port: u16) {
        let logged = Arc::new(LoggedRejections::default());
        let first = TaskTracker::new();
        for usual in default_ports_except(own_port) {
            let (watcher, logged) = (self.clone(), Arc::clone(&logged));
            first.spawn(async move { watcher.discover_on(usual, &logged).await });
        }
        first.close();
        // A server that responds later is added when its probe completes.
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
        let watcher = self.clone();
        self.tasks.spawn(async move {
            while watcher.pause(DISCOVERY_INTERVAL).await {
                for usual in default_ports_except(own_port) {
                    watcher.discover_on(usual, &logged).await;
                }
            }
        });
    }

    async fn discover_on(&self, usual: (u16, &'static str), logged: &LoggedRejections) {
        match discover::discover(usual, &self.pool, &self.connector, self.limits).await {
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
                self.spawn_probes(backend);
            }
        }
    }

    fn spawn_probes(&self, backend: Arc<Backend>) {
        let watcher = self.clone();
        self.tasks.spawn(async move {
            let mut failed_probes = 0;
            loop {
                let pause = if backend.is_up() && failed_probes == 0 {
                    watcher.interval
                } else {
                    watcher.interval.min(DOWN_INTERVAL)
                };
                tokio::select! {
                    () = sleep(pause) => {}
                    // Every failed request triggers a recheck. A short delay combines the rechecks of
                    // many requests into one probe.
                    () = backend.health.recheck.notified() => sleep(DOWN_INTERVAL / 4).await,
                    () = watcher.stop.cancelled() => return,
                }
                watcher.probe(&backend, &mut failed_probes).await;
            }
        });
    }

    /// Probes one backend and updates its state.
    async fn probe(&self, backend: &Backend, failed_probes: &mut u32) {
        match probe::probe(backend, &self.connector, self.limits).await {
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
                    // A probe timed out, but the backend responded to requests meanwhile: it is busy,
                    // not down.
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
                if backend.is_up() && is_reachable && !is_repeated {
                    tracing::debug!(backend = backend.name, "probe failed: {}", failure.why());
                    return;
                }
                match failure {
                    ProbeError::ConnectionRefused(_) => backend.set_refuses_connections(true),
                    // The backend accepted a connection and closed it, which neither proves nor
                    // disproves that it refuses connections.
                    ProbeError::Closed(_) => {}
                    _ => backend.set_refuses_connections(false),
                }
                backend.health.set_rejected_key(match failure {
                    ProbeError::KeyRejected(status, _) => Some(status),
                    _ => None,
                });
                self.pool.mark_down(backend, failure.why());
                // Marks a silent backend as hung. Requests that wait for its response are then retried
                // on another backend.
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
        let max = self.limits.models;
        if total > max && backend.settings.fixed_models.is_none() {
            tracing::warn!(
                "backend {name} at {url} lists {total} models; only the first {max} are used \
                 (upstream.max_models)"
            );
        }
    }

    /// Waits between two discovery rounds. Returns false if the server stops meanwhile.
    async fn pause(&self, pause: Duration) -> bool {
        tokio::select! {
            () = sleep(pause) => true,
            () = self.stop.cancelled() => false,
        }
    }
}

/// Returns the default ports without this server's own, which would be discovered as a backend.
fn default_ports_except(own_port: u16) -> impl Iterator<Item = (u16, &'static str)> {
    discover::DEFAULT_PORTS
        .into_iter()
        .filter(move |(port, _)| *port != own_port)
}
