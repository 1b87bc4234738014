//! The backends, what they serve, and which one gets a request. No I/O happens here.

mod backend;
mod pick;

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};

use serde_json::{Value, json};

use crate::config::BackendUrl;

pub(crate) use backend::{Backend, Slot, State};

/// All backends.
#[derive(Debug, Default)]
pub(crate) struct Pool {
    table: RwLock<Arc<Table>>,
    /// Held while a new table is made, so that no change is lost.
    changing: Mutex<()>,
    turn: AtomicUsize,
}

/// What is known at one moment.
#[derive(Debug, Default)]
pub(crate) struct Table {
    /// In the order of the configuration.
    pub(crate) backends: Vec<Arc<Backend>>,
    /// Which backends serve a model, by their place in the list. Those that are down too: a model
    /// does not become unknown because its only server restarts.
    by_model: HashMap<String, Vec<usize>>,
    /// Every model of a backend that is up, once, as its first backend describes it.
    pub(crate) models: Vec<Value>,
}

/// Who may serve a model.
#[derive(Debug)]
pub(crate) enum Candidates {
    /// These, all of them up.
    Up(Vec<Arc<Backend>>),
    /// It is known, but whoever serves it is down.
    AllDown,
    /// Nobody says that they serve it, but not everyone has said what they serve.
    NotYet,
    /// Nobody serves it.
    Unknown,
}

impl Pool {
    pub(crate) fn new(backends: impl IntoIterator<Item = Backend>) -> Self {
        let pool = Self::default();
        pool.change(|list| list.extend(backends.into_iter().map(Arc::new)));
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
                let backend = Arc::new(backend);
                list.push(Arc::clone(&backend));
                added = Some(backend);
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
        let _one_at_a_time = self.changing.lock().unwrap_or_else(PoisonError::into_inner);
        let old = self.table();
        let mut backends = old.backends.clone();
        change(&mut backends);
        let table = Table::of(backends, &old.by_model);
        *self.table.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(table);
    }

    /// Everyone who may serve this model. A request that names none goes to the first that is up.
    pub(crate) fn candidates(&self, model: Option<&str>) -> Candidates {
        let table = self.table();
        let up: Vec<_> = match model.map(|model| table.serving(model)) {
            Some(None) if table.is_complete() => return Candidates::Unknown,
            Some(None) => return Candidates::NotYet,
            Some(Some(places)) => {
                let serving = places.iter().map(|place| &table.backends[*place]);
                serving.filter(|one| one.is_up()).cloned().collect()
            }
            None => {
                let mut up = table.backends.iter().filter(|one| one.is_up());
                up.next().cloned().into_iter().collect()
            }
        };
        if up.is_empty() {
            Candidates::AllDown
        } else {
            Candidates::Up(up)
        }
    }

    /// Takes one of the candidates out of the list: the least busy one.
    pub(crate) fn take(&self, candidates: &mut Vec<Arc<Backend>>) -> Option<Arc<Backend>> {
        let turn = self.turn.fetch_add(1, Ordering::Relaxed);
        let outstanding = candidates.iter().map(|backend| backend.outstanding());
        pick::pick(outstanding, turn).map(|index| candidates.remove(index))
    }
}

impl Table {
    fn of(backends: Vec<Arc<Backend>>, known: &HashMap<String, Vec<usize>>) -> Self {
        let mut by_model: HashMap<String, Vec<usize>> = HashMap::new();
        let mut models: Vec<Value> = Vec::new();
        let mut listed = std::collections::HashSet::new();
        for (place, backend) in backends.iter().enumerate() {
            let serves: Vec<String> = match backend.state() {
                State::Up(described) => described
                    .iter()
                    .filter_map(|model| {
                        let id = model["id"].as_str()?.to_owned();
                        if listed.insert(id.clone()) {
                            models.push(model.clone());
                        }
                        Some(id)
                    })
                    .collect(),
                // What it served before it went down.
                State::Down(_) => known
                    .iter()
                    .filter(|(_, places)| places.contains(&place))
                    .map(|(id, _)| id.clone())
                    .chain(backend.fixed_models.clone().unwrap_or_default())
                    .collect(),
            };
            for id in serves {
                let places = by_model.entry(id).or_default();
                if places.last() != Some(&place) {
                    places.push(place);
                }
            }
        }
        Self {
            backends,
            by_model,
            models,
        }
    }

    /// Who serves a model, by their place in the list. Ollama's `name` is short for `name:latest`.
    fn serving(&self, model: &str) -> Option<&Vec<usize>> {
        self.by_model.get(model).or_else(|| {
            if model.contains(':') {
                return None;
            }
            self.by_model.get(&format!("{model}:latest"))
        })
    }

    /// Whether it is known of every backend what it serves.
    fn is_complete(&self) -> bool {
        !self.backends.is_empty() && self.backends.iter().all(|one| one.is_known())
    }

    pub(crate) fn up(&self) -> usize {
        self.backends.iter().filter(|one| one.is_up()).count()
    }

    /// The names of all models, sorted.
    pub(crate) fn model_names(&self) -> Vec<&str> {
        let mut names: Vec<_> = self.by_model.keys().map(String::as_str).collect();
        names.sort_unstable();
        names
    }
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
