//! What is known about all backends at one moment, arranged for looking it up.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use serde_json::Value;

use super::backend::{Backend, State};
use super::queue::Queue;
use super::route::{Candidate, Route};
use crate::config::Alias;

/// What is known at one moment.
#[derive(Debug)]
pub(crate) struct Table {
    /// In the order of the configuration.
    pub(crate) backends: Vec<Arc<Backend>>,
    /// Who serves a model. Those that are down too: a model does not become unknown because its
    /// only server restarts.
    routes: HashMap<Arc<str>, Named>,
    /// For requests that name no model.
    pub(super) any: Arc<Route>,
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
        let route = |candidates, in_order| {
            let queue = Arc::clone(queue);
            Arc::new(Route {
                candidates,
                in_order,
                queue,
            })
        };
        let drafts = Drafts::of(&backends);
        let mut routes = HashMap::new();
        for alias in aliases {
            let candidates = drafts.of_alias(alias);
            if !candidates.is_empty() {
                let named = Named {
                    route: route(candidates, false),
                    is_short: false,
                };
                routes.insert(Arc::from(alias.name.as_str()), named);
            }
        }
        let models = models(&backends, aliases, &routes);
        let is_alias = |name: &str| aliases.iter().any(|alias| alias.name == name);
        for (name, candidates) in &drafts.by_model {
            if let Some(short) = name.strip_suffix(":latest")
                && !drafts.by_model.contains_key(short)
                && !is_alias(short)
            {
                let named = Named {
                    route: route(drafts.named(short, short), false),
                    is_short: true,
                };
                routes.insert(Arc::from(short), named);
            }
            if !is_alias(name) {
                let named = Named {
                    route: route(candidates.clone(), false),
                    is_short: false,
                };
                routes.insert(Arc::clone(name), named);
            }
        }
        let everyone = backends.iter().map(|backend| Candidate {
            backend: Arc::clone(backend),
            model: None,
        });
        Self {
            any: route(everyone.collect(), true),
            backends,
            routes,
            models,
        }
    }

    /// Who serves a model.
    pub(super) fn route(&self, model: &str) -> Option<&Arc<Route>> {
        self.routes.get(model).map(|named| &named.route)
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

    /// Who serves a model, asked for by another name. Ollama's `name` is short for `name:latest`.
    fn named(&self, model: &str, asked: &str) -> Vec<Candidate> {
        let latest = format!("{model}:latest");
        let found = self.by_model.get_key_value(model);
        let found = found.or_else(|| self.by_model.get_key_value(latest.as_str()));
        let Some((real, candidates)) = found else {
            return Vec::new();
        };
        let renamed = candidates.iter().map(|one| Candidate {
            backend: Arc::clone(&one.backend),
            model: (**real != *asked).then(|| Arc::clone(real)),
        });
        renamed.collect()
    }

    /// Who serves any of the models that an alias stands for: each by the first that it has.
    fn of_alias(&self, alias: &Alias) -> Vec<Candidate> {
        let models = alias.models.iter();
        let all = models.flat_map(|model| self.named(model, &alias.name));
        let mut seen = HashSet::new();
        let mut candidates: Vec<_> = all.filter(|one| seen.insert(one.backend.id)).collect();
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
    let mut models: Vec<Value> = Vec::new();
    let mut described: HashMap<String, Value> = HashMap::new();
    for backend in backends {
        let State::Up(told) = backend.state() else {
            continue;
        };
        for model in told.iter() {
            let Some(id) = model["id"].as_str() else {
                continue;
            };
            if !described.contains_key(id) {
                described.insert(id.to_owned(), model.clone());
                if !aliases.iter().any(|alias| alias.name == id) {
                    models.push(model.clone());
                }
            }
        }
    }
    for alias in aliases {
        let candidates = routes.get(alias.name.as_str());
        let candidates = candidates.map_or(&[][..], |named| &named.route.candidates);
        let first = candidates.iter().find(|one| one.backend.is_up());
        let real = first.map(|one| one.model.as_deref().unwrap_or(&alias.name));
        if let Some(mut model) = real.and_then(|real| described.get(real)).cloned() {
            model["id"] = alias.name.clone().into();
            models.push(model);
        }
    }
    models
}
