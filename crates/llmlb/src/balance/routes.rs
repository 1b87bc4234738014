//! Who serves which model, among all backends or those of a kind.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, OnceLock};

use super::backend::Backend;
use super::clock::Moment;
use super::queue::Queue;
use super::route::{Candidate, Route};
use crate::backend_id::BackendId;
use crate::config::{Alias, Kind};

/// Ollama's `name` is short for `name:latest`.
const LATEST: &str = ":latest";

#[derive(Debug)]
pub(super) struct Routes {
    /// Who serves a model. Those that are down too: a model does not become unknown because its
    /// only server restarts.
    by_model: HashMap<Arc<str>, Named>,
    /// For requests that name no model.
    any: Arc<Route>,
    /// The names of models and aliases, sorted when they are first needed: a request for an unknown
    /// model must not cost a sort of thousands of names.
    names: OnceLock<Vec<Arc<str>>>,
}

#[derive(Debug)]
struct Named {
    route: Arc<Route>,
    /// Only short for another name.
    is_short: bool,
}

/// Who serves what, while it is arranged.
#[derive(Default)]
struct Drafts {
    by_model: HashMap<Arc<str>, Vec<Candidate>>,
}

impl Routes {
    pub(super) fn new(
        backends: &[Arc<Backend>],
        kind: Option<Kind>,
        aliases: &[Alias],
        queue: &Arc<Queue>,
    ) -> Self {
        let is_meant = |one: &&Arc<Backend>| kind.is_none() || one.kind() == kind;
        let backends: Vec<&Arc<Backend>> = backends.iter().filter(is_meant).collect();
        let drafts = Drafts::new(&backends);
        let mut by_model = HashMap::new();
        let mut insert = |name: &Arc<str>, candidates, is_short| {
            let route = Route::new(kind, Some(Arc::clone(name)), candidates, queue);
            let route = Arc::new(route);
            by_model.insert(Arc::clone(name), Named { route, is_short });
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
        let everyone = backends.into_iter().map(|backend| Candidate {
            backend: Arc::clone(backend),
            model: None,
        });
        Self {
            any: Arc::new(Route::new(kind, None, everyone.collect(), queue)),
            by_model,
            names: OnceLock::new(),
        }
    }

    /// Who serves a model; who serves a request that names none.
    pub(super) fn get(&self, model: Option<&str>) -> Option<&Arc<Route>> {
        match model {
            Some(model) => self.by_model.get(model).map(|named| &named.route),
            None => Some(&self.any),
        }
    }

    /// True if for some model this backend is the only one that is up and not ejected.
    pub(super) fn is_last(&self, id: BackendId, now: Moment) -> bool {
        let mut routes = self.by_model.values().map(|named| &named.route);
        routes.any(|route| route.is_last(id, now))
    }

    /// The names of all models and aliases, sorted.
    pub(super) fn names(&self) -> Vec<&str> {
        let names = self.names.get_or_init(|| {
            let listed = self.by_model.iter().filter(|(_, named)| !named.is_short);
            let mut names: Vec<_> = listed.map(|(name, _)| Arc::clone(name)).collect();
            names.sort_unstable();
            names
        });
        names.iter().map(|name| &**name).collect()
    }
}

impl Drafts {
    fn new(backends: &[&Arc<Backend>]) -> Self {
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
    fn renamed(&self, model: &str, selection: &str) -> impl Iterator<Item = Candidate> {
        let found = self.by_model.get_key_value(model);
        let name = found.and_then(|(name, _)| (**name != *selection).then(|| Arc::clone(name)));
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
