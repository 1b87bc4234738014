//! What is known about all backends at one moment, arranged for looking it up.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use serde_json::Value;

use super::backend::{Backend, State};
use super::queue::Queue;
use super::route::{Candidate, Route};
use crate::config::Alias;

/// Ollama's `name` is short for `name:latest`.
const LATEST: &str = ":latest";

/// What is known at one moment.
#[derive(Debug)]
pub(crate) struct Table {
    /// In the order of the configuration.
    pub(crate) backends: Vec<Arc<Backend>>,
    /// Who serves a model. Those that are down too: a model does not become unknown because its
    /// only server restarts.
    routes: HashMap<Arc<str>, Named>,
    /// For requests that name no model.
    any: Arc<Route>,
    /// Every model of a backend that is up, once, as its first backend describes it; then the
    /// aliases.
    pub(crate) models: Vec<Value>,
}

#[derive(Debug)]
struct Named {
    route: Arc<Route>,
    /// Only short for another name.
    is_short: bool,
}

/// Who serves what, while a table is made.
#[derive(Default)]
struct Drafts {
    by_model: HashMap<Arc<str>, Vec<Candidate>>,
}

impl Table {
    pub(super) fn of(backends: Vec<Arc<Backend>>, aliases: &[Alias], queue: &Arc<Queue>) -> Self {
        let drafts = Drafts::of(&backends);
        let mut routes = HashMap::new();
        let mut insert = |name: &Arc<str>, candidates, is_short| {
            let route = Arc::new(Route::new(Some(Arc::clone(name)), candidates, queue));
            routes.insert(Arc::clone(name), Named { route, is_short });
        };
        let names: HashSet<&str> = aliases.iter().map(|alias| alias.name.as_str()).collect();
        let is_alias = |name: &str| names.contains(name);
        for alias in aliases {
            let candidates = drafts.of_alias(alias);
            if !candidates.is_empty() {
                insert(&Arc::from(alias.name.as_str()), candidates, false);
            }
        }
        for (name, candidates) in &drafts.by_model {
            if let Some(short) = name.strip_suffix(LATEST)
                && !drafts.by_model.contains_key(short)
                && !is_alias(short)
            {
                let candidates = drafts.renamed(name, short).collect();
                insert(&Arc::from(short), candidates, true);
            }
            if !is_alias(name) {
                insert(name, candidates.clone(), false);
            }
        }
        let models = models(&backends, aliases, &routes);
        let everyone = backends.iter().map(|backend| Candidate {
            backend: Arc::clone(backend),
            model: None,
        });
        Self {
            any: Arc::new(Route::new(None, everyone.collect(), queue)),
            backends,
            routes,
            models,
        }
    }

    /// Who serves a model; who serves a request that names none.
    pub(super) fn route(&self, model: Option<&str>) -> Option<&Arc<Route>> {
        match model {
            Some(model) => self.routes.get(model).map(|named| &named.route),
            None => Some(&self.any),
        }
    }

    /// Whether it is known of every backend what it serves.
    pub(super) fn is_complete(&self) -> bool {
        !self.backends.is_empty() && self.backends.iter().all(|one| one.is_known())
    }

    pub(crate) fn up(&self) -> usize {
        self.backends.iter().filter(|one| one.is_up()).count()
    }

    /// The names of all models and aliases, sorted.
    pub(crate) fn model_names(&self) -> Vec<&str> {
        let listed = self.routes.iter().filter(|(_, named)| !named.is_short);
        let mut names: Vec<&str> = listed.map(|(name, _)| &**name).collect();
        names.sort_unstable();
        names
    }
}

impl Drafts {
    fn of(backends: &[Arc<Backend>]) -> Self {
        let mut drafts = Self::default();
        for backend in backends {
            for model in backend.served().iter() {
                let candidates = drafts.by_model.entry(Arc::clone(model)).or_default();
                if candidates
                    .last()
                    .is_none_or(|last| last.backend.id != backend.id)
                {
                    candidates.push(Candidate {
                        backend: Arc::clone(backend),
                        model: None,
                    });
                }
            }
        }
        drafts
    }

    /// Who serves a model by this very name, when it is asked for by that one.
    fn renamed(&self, model: &str, asked: &str) -> impl Iterator<Item = Candidate> {
        let found = self.by_model.get_key_value(model);
        let name = found.and_then(|(name, _)| (**name != *asked).then(|| Arc::clone(name)));
        let candidates = found.into_iter().flat_map(|(_, candidates)| candidates);
        candidates.map(move |one| Candidate {
            backend: Arc::clone(&one.backend),
            model: name.clone(),
        })
    }

    /// Who serves any of the models that an alias stands for: each by the first that it has. Here
    /// too `name` is short for Ollama's `name:latest`.
    fn of_alias(&self, alias: &Alias) -> Vec<Candidate> {
        let mut seen = HashSet::new();
        let mut candidates = Vec::new();
        for model in &alias.models {
            let longer = format!("{model}{LATEST}");
            let exact = self.renamed(model, &alias.name);
            let latest = self.renamed(&longer, &alias.name);
            let new = exact
                .chain(latest)
                .filter(|one| seen.insert(one.backend.id));
            candidates.extend(new);
        }
        candidates.sort_by_key(|one| one.backend.id);
        candidates
    }
}

/// What `/v1/models` lists.
fn models(
    backends: &[Arc<Backend>],
    aliases: &[Alias],
    routes: &HashMap<Arc<str>, Named>,
) -> Vec<Value> {
    let hidden: HashSet<&str> = aliases.iter().map(|alias| alias.name.as_str()).collect();
    let told = backends.iter().filter_map(|backend| match backend.state() {
        State::Up(models) => Some(models),
        State::Down(_) => None,
    });
    let told: Vec<Arc<Vec<Value>>> = told.collect();
    let mut models = Vec::new();
    let mut described = HashMap::new();
    for model in told.iter().flat_map(|models| models.iter()) {
        let Some(id) = model["id"].as_str() else {
            continue;
        };
        if let Entry::Vacant(entry) = described.entry(id) {
            entry.insert(model);
            if !hidden.contains(id) {
                models.push(model.clone());
            }
        }
    }
    for alias in aliases {
        let candidates = routes.get(alias.name.as_str());
        let candidates = candidates.map_or(&[][..], |named| &named.route.candidates);
        let first = candidates.iter().find(|one| one.backend.is_up());
        let real = first.map(|one| one.model.as_deref().unwrap_or(&alias.name));
        if let Some(model) = real.and_then(|real| described.get(real)) {
            let mut model = Value::clone(model);
            model["id"] = alias.name.clone().into();
            models.push(model);
        }
    }
    models
}
