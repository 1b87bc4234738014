//! The backends, what they serve, and which one gets a request. No I/O happens here.

mod backend;
mod pick;
mod queue;
mod route;
mod slot;
mod table;

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::Duration;

use serde_json::{Value, json};
use tokio::time::{Instant, timeout_at};

use crate::config::{Alias, BackendUrl, Config};

pub(crate) use backend::{Backend, BackendId, State};
pub(crate) use queue::Waited;
pub(crate) use route::Route;
pub(crate) use slot::Slot;
pub(crate) use table::Table;

use queue::Queue;

/// All backends.
#[derive(Debug)]
pub(crate) struct Pool {
    table: RwLock<Arc<Table>>,
    aliases: Vec<Alias>,
    queue: Arc<Queue>,
    /// Held while a new table is made, so that no change is lost.
    changing: Mutex<()>,
    turn: AtomicUsize,
}

/// What a pool is to do beside knowing its backends.
#[derive(Clone, Debug)]
pub(crate) struct Terms {
    pub(crate) aliases: Vec<Alias>,
    /// How many requests may wait for a place.
    pub(crate) queue: usize,
    /// How long each of them may.
    pub(crate) queue_timeout: Duration,
}

/// What a request wants.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Wish<'a> {
    pub(crate) model: Option<&'a str>,
    /// Chain hashes of the prompt's 1 KiB blocks: `blocks[i]` covers the first i+1 KiB.
    pub(crate) blocks: &'a [u64],
    /// Hash of an id that a backend issued and that the request names.
    pub(crate) issued: Option<u64>,
    /// Who asks, for fairness.
    pub(crate) client: u64,
}

/// Why nobody serves a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Absent {
    /// Nobody has it.
    Unknown,
    /// Nobody says that they have it, but not everyone has said what they have.
    NotYet,
}

/// Who gets a request.
#[derive(Debug)]
pub(crate) enum Choice {
    Slot(Slot),
    /// Whoever could serve it is at its limit.
    Busy,
    /// Whoever could serve it is down, or was tried.
    Down,
}

impl From<&Config> for Terms {
    fn from(config: &Config) -> Self {
        Self {
            aliases: config.aliases.clone(),
            queue: config.server.queue,
            queue_timeout: config.server.queue_timeout,
        }
    }
}

impl Pool {
    pub(crate) fn new(terms: Terms, backends: impl IntoIterator<Item = Backend>) -> Self {
        let queue = Arc::new(Queue::new(terms.queue, terms.queue_timeout));
        let none = Table::of(Vec::new(), &[], &queue);
        let pool = Self {
            table: RwLock::new(Arc::new(none)),
            aliases: terms.aliases,
            queue,
            changing: Mutex::new(()),
            turn: AtomicUsize::new(0),
        };
        pool.change(|list| {
            for backend in backends {
                append(list, backend);
            }
        });
        pool
    }

    pub(crate) fn table(&self) -> Arc<Table> {
        Arc::clone(&self.table.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Whether there is a backend at this address.
    pub(crate) fn knows(&self, url: &BackendUrl) -> bool {
        is_among(&self.table().backends, url)
    }

    /// Adds a backend that was found. `None`: there is one at its address already.
    pub(crate) fn add(&self, backend: Backend) -> Option<Arc<Backend>> {
        let mut added = None;
        self.change(|list| {
            if !is_among(list, &backend.url) {
                added = append(list, backend);
            }
        });
        added
    }

    /// Takes note of how a backend is. Says how it was.
    pub(crate) fn note(&self, backend: &Backend, state: State) -> State {
        if backend.state() == state {
            return state; // So it is nearly always.
        }
        let mut before = None;
        self.change(|_| before = Some(backend.replace_state(state.clone())));
        before.unwrap_or(state)
    }

    /// Takes note that a backend cannot be reached, and says so if that is new.
    pub(crate) fn note_down(&self, backend: &Backend, why: &str) {
        let down = State::Down(why.to_owned());
        if self.note(backend, down.clone()) != down {
            tracing::warn!("backend {} at {} is down: {why}", backend.name, backend.url);
        }
    }

    fn change(&self, change: impl FnOnce(&mut Vec<Arc<Backend>>)) {
        let one_at_a_time = self.changing.lock().unwrap_or_else(PoisonError::into_inner);
        let mut backends = self.table().backends.clone();
        change(&mut backends);
        let table = Table::of(backends, &self.aliases, &self.queue);
        *self.table.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(table);
        drop(one_at_a_time);
        self.queue.freed();
    }

    /// Finds who may serve a model. A request that names none may go to anyone.
    pub(crate) fn route(&self, model: Option<&str>) -> Result<Arc<Route>, Absent> {
        let table = self.table();
        let Some(model) = model else {
            return Ok(Arc::clone(&table.any));
        };
        match table.route(model) {
            Some(route) => Ok(Arc::clone(route)),
            None if table.is_complete() => Err(Absent::Unknown),
            None => Err(Absent::NotYet),
        }
    }

    /// Chooses one of those that were not tried yet, and takes a place there.
    pub(crate) fn choose(
        &self,
        route: &Arc<Route>,
        _wish: &Wish<'_>,
        tried: &[BackendId],
    ) -> Choice {
        let mut up: Vec<usize> = (0..route.candidates.len())
            .filter(|place| {
                let backend = &route.candidates[*place].backend;
                backend.is_up() && !tried.contains(&backend.id)
            })
            .collect();
        if up.is_empty() {
            return Choice::Down;
        }
        if route.in_order {
            up.truncate(1);
        }
        while !up.is_empty() {
            let turn = self.turn.fetch_add(1, Ordering::Relaxed);
            let outstanding = up.iter().map(|place| {
                let backend = &route.candidates[*place].backend;
                backend.outstanding() * 1000 / backend.weight as usize
            });
            let Some(index) = pick::pick(outstanding, turn) else {
                break;
            };
            if let Some(slot) = Slot::take(route, up.swap_remove(index)) {
                return Choice::Slot(slot);
            }
        }
        Choice::Busy
    }

    /// Waits until there is a place.
    pub(crate) async fn wait(
        &self,
        route: &Arc<Route>,
        wish: &Wish<'_>,
        tried: &[BackendId],
    ) -> Result<Slot, Waited> {
        let _waiting = self.queue.join()?;
        let deadline = Instant::now() + self.queue.patience;
        loop {
            let mut changed = std::pin::pin!(self.queue.changed.notified());
            changed.as_mut().enable();
            let current = self.route(wish.model).ok();
            match self.choose(current.as_ref().unwrap_or(route), wish, tried) {
                Choice::Slot(slot) => return Ok(slot),
                Choice::Down => return Err(Waited::Down),
                Choice::Busy => {}
            }
            let changed = timeout_at(deadline, changed).await;
            changed.map_err(|_| Waited::TooLong)?;
        }
    }

    /// A backend issued this id.
    pub(crate) fn issued(&self, _id: u64, _backend: &Backend) {}
}

/// Gives a backend its number. `None`: there are as many as can be.
fn append(list: &mut Vec<Arc<Backend>>, mut backend: Backend) -> Option<Arc<Backend>> {
    backend.id = BackendId(u16::try_from(list.len()).ok()?);
    let backend = Arc::new(backend);
    list.push(Arc::clone(&backend));
    Some(backend)
}

fn is_among(backends: &[Arc<Backend>], url: &BackendUrl) -> bool {
    backends
        .iter()
        .any(|one| one.url.authority() == url.authority())
}

/// How a model is described that only the configuration knows about.
pub(crate) fn describe(id: &str, owner: &str) -> Value {
    json!({ "id": id, "object": "model", "created": 0, "owned_by": owner })
}

#[cfg(test)]
mod tests;
