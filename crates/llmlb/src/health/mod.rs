//! Knowing which backends are there: asking them again and again, and looking for new ones.

mod discover;
mod model_list;
mod probe;

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::balance::{Backend, Models, Pool, State};
use crate::upstream::Connector;
use discover::Found;
use probe::Silence;

pub(crate) use probe::Limits;

/// The servers that are not used, and why, of which the log has a line.
type Told = Mutex<BTreeSet<(u16, String)>>;

/// How soon a backend that is down is asked again: it gets requests soon after it is back.
const WHILE_DOWN: Duration = Duration::from_secs(1);
/// How many bad answers in a row make a backend that can be reached count as down. One slow
/// answer of a busy one does not.
const BAD_ANSWERS: u32 = 3;
/// How long the start waits for backends that do not answer.
const AT_START: Duration = Duration::from_millis(1500);
/// How often new servers are looked for.
const LOOK_AGAIN: Duration = Duration::from_secs(10);

/// Keeps the pool up to date.
#[derive(Clone)]
pub(crate) struct Watcher {
    pub(crate) pool: Arc<Pool>,
    pub(crate) connector: Connector,
    pub(crate) interval: Duration,
    pub(crate) limits: Limits,
    pub(crate) tasks: TaskTracker,
    pub(crate) stop: CancellationToken,
}

impl Watcher {
    /// Asks every backend once, then goes on asking in the background.
    pub(crate) async fn start(&self) {
        let backends = self.pool.table().backends.clone();
        let first = TaskTracker::new();
        for backend in &backends {
            let (watcher, backend) = (self.clone(), Arc::clone(backend));
            first.spawn(async move { watcher.ask(&backend, &mut 0).await });
        }
        first.close();
        // What has not answered by then is asked by its own loop.
        let _ = timeout(AT_START, first.wait()).await;
        for backend in backends {
            if backend.state() == State::unasked() {
                let (name, url) = (&backend.name, &backend.url);
                tracing::warn!("backend {name} at {url} has not answered yet");
            }
            self.keep_asking(backend);
        }
    }

    /// Looks for LLM servers on this machine, now and from time to time.
    pub(crate) async fn discover(&self, own_port: u16) {
        let told = Arc::new(Told::default());
        let first = TaskTracker::new();
        for usual in usual_but(own_port) {
            let (watcher, told) = (self.clone(), Arc::clone(&told));
            first.spawn(async move { watcher.look(usual, &told).await });
        }
        first.close();
        // What answers later than this is found all the same.
        let _ = timeout(AT_START, first.wait()).await;
        let is_told = !told
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .is_empty();
        if self.pool.table().backends.is_empty() && !is_told {
            let ports = discover::USUAL.map(|(port, name)| format!("{port} ({name})"));
            tracing::warn!(
                "found no LLM server on this machine (ports {}); looking again every {} s. \
                 Start one, name one with --backend URL, or try --demo",
                ports.join(", "),
                LOOK_AGAIN.as_secs()
            );
        }
        let watcher = self.clone();
        self.tasks.spawn(async move {
            while watcher.pause(LOOK_AGAIN).await {
                for usual in usual_but(own_port) {
                    watcher.look(usual, &told).await;
                }
            }
        });
    }

    async fn look(&self, usual: (u16, &'static str), told: &Told) {
        match discover::look(usual, &self.pool, &self.connector, self.limits).await {
            Found::Nothing => {}
            Found::Foreign(why) => {
                let (port, _) = usual;
                let mut told = told.lock().unwrap_or_else(PoisonError::into_inner);
                if told.insert((port, why.clone())) {
                    let url = format!("http://127.0.0.1:{port}");
                    tracing::warn!(
                        "not using the LLM server at {url}: {why}; name it with --backend {url} \
                         if that is intended"
                    );
                }
            }
            Found::Added {
                backend,
                is_checked,
            } => {
                if let State::Up(models) = backend.state() {
                    let models = discover::in_short(&models);
                    let note = if is_checked {
                        ""
                    } else {
                        " (this system does not tell which user runs it)"
                    };
                    tracing::info!("found {} at {}, {models}{note}", backend.name, backend.url);
                }
                self.keep_asking(backend);
            }
        }
    }

    fn keep_asking(&self, backend: Arc<Backend>) {
        let watcher = self.clone();
        self.tasks.spawn(async move {
            let mut bad_answers = 0;
            loop {
                let pause = if backend.is_up() && bad_answers == 0 {
                    watcher.interval
                } else {
                    watcher.interval.min(WHILE_DOWN)
                };
                tokio::select! {
                    () = sleep(pause) => {}
                    // A moment, or a backend that dies would be asked by every request that fails.
                    () = backend.health.recheck.notified() => sleep(WHILE_DOWN / 4).await,
                    () = watcher.stop.cancelled() => return,
                }
                watcher.ask(&backend, &mut bad_answers).await;
            }
        });
    }

    /// Asks one backend and takes note of the answer.
    async fn ask(&self, backend: &Backend, bad_answers: &mut u32) {
        match probe::ask(backend, &self.connector, self.limits).await {
            Ok(answer) => {
                *bad_answers = 0;
                backend.health.set_hung(false);
                backend.set_refuses_connections(false);
                backend.health.note_answer();
                backend.health.set_rejected_key(None);
                if let Some(kind) = discover::kind(&answer) {
                    backend.note_kind(kind);
                }
                self.note_up(backend, &Arc::new(answer.models), answer.total);
            }
            Err(Silence::Ours(why)) => tracing::debug!("backend {}: {why}", backend.name),
            Err(silence) => {
                let was_active = backend.health.was_active();
                *bad_answers = match silence {
                    // Who answers others only has no time for us.
                    Silence::Hung(_) if was_active => 1,
                    _ => *bad_answers + 1,
                };
                let is_often = *bad_answers >= BAD_ANSWERS;
                let is_there = !matches!(
                    silence,
                    Silence::Absent(_) | Silence::Gone(_) | Silence::Foreign(_)
                );
                if backend.is_up() && is_there && !is_often {
                    tracing::debug!(backend = backend.name, "bad answer: {}", silence.why());
                    return;
                }
                match silence {
                    Silence::Absent(_) => backend.set_refuses_connections(true),
                    // It was there for a moment, and may be again.
                    Silence::Closed(_) => {}
                    _ => backend.set_refuses_connections(false),
                }
                backend.health.set_rejected_key(match silence {
                    Silence::KeyRejected(status, _) => Some(status),
                    _ => None,
                });
                self.pool.note_down(backend, silence.why());
                // Requests that wait for it wait in vain; elsewhere they may be answered.
                let is_silent = matches!(silence, Silence::Hung(_) | Silence::Gone(_));
                backend.health.set_hung(is_silent && is_often);
            }
        }
    }

    fn note_up(&self, backend: &Backend, models: &Arc<Models>, total: usize) {
        let (name, url) = (&backend.name, &backend.url);
        let told = discover::in_short(models);
        match self.pool.note(backend, State::Up(Arc::clone(models))) {
            State::Down(_) => tracing::info!("backend {name} at {url} is up, {told}"),
            State::Up(before) if before != *models => {
                tracing::info!("backend {name} at {url} now serves {told}");
            }
            State::Up(_) => return,
        }
        let most = self.limits.models;
        if total > most && backend.settings.fixed_models.is_none() {
            tracing::warn!(
                "backend {name} at {url}: the first {most} of {total} models are used \
                 (upstream.max_models)"
            );
        }
    }

    /// `false`: it is time to end.
    async fn pause(&self, pause: Duration) -> bool {
        tokio::select! {
            () = sleep(pause) => true,
            () = self.stop.cancelled() => false,
        }
    }
}

/// The usual ports, but for the one that this server has itself.
fn usual_but(own_port: u16) -> impl Iterator<Item = (u16, &'static str)> {
    discover::USUAL
        .into_iter()
        .filter(move |(port, _)| *port != own_port)
}
