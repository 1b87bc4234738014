//! The routes of all models, among all backends or those of one kind.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, OnceLock};

use super::backend::Backend;
use super::clock::Moment;
use super::queue::Queue;
use super::route::{Candidate, Route};
use crate::backend_id::BackendId;
use crate::config::{Alias, Kind};

/// Tag that Ollama adds to a model name without a tag: `name` is short for `name:latest`.
const LATEST: &str = ":latest";

#[derive(Debug)]
pub(super) struct Routes {
    /// Routes by model. They include backends that are down: a model does not become unknown because
    /// its only backend restarts.
    by_model: HashMap<Arc<str>, Named>,
    /// The route of requests without a model.
    any: Arc<Route>,
    /// Names of models and aliases, sorted at the first use and once: a request for an unknown model
    /// must not cost a sort of thousands of names.
    names: OnceLock<Vec<Arc<str>>>,
}

#[derive(Debug)]
struct Named {
    route: Arc<Route>,
    /// True if the name is short for `name:latest`. Such a name is not listed, since the full name
    /// is.
    is_short: bool,
}

/// Candidates by model, while the routes are built.
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
        let has_kind = |one: &&Arc<Backend>| kind.is_none() || one.kind() == kind;
        let backends: Vec<&Arc<Backend>> = backends.iter().filter(has_kind).collect();
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
        let all = backends.into_iter().map(|backend| Candidate {
            backend: Arc::clone(backend),
            model: None,
        });
        Self {
            any: Arc::new(Route::new(kind, None, all.collect(), queue)),
            by_model,
            names: OnceLock::new(),
        }
    }

    pub(super) fn get(&self, model: Option<&str>) -> Option<&Arc<Route>> {
        match model {
            Some(model) => self.by_model.get(model).map(|named| &named.route),
            None => Some(&self.any),
        }
    }

    /// True if some model of this backend has no other candidate that is up and not ejected. The
    /// backend is then not ejected for failures that a client may have provoked, nor for a pause
    /// that it requested.
    pub(super) fn is_last(&self, id: BackendId, now: Moment) -> bool {
        let mut routes = self.by_model.values().map(|named| &named.route);
        routes.any(|route| route.is_last(id, now))
    }

    /// Returns the names of all models and aliases, sorted, for the error about an unknown model.
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
            for model in backend.model_names().iter() {
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

    /// Returns the candidates that serve `model`, for requests that name it `alias`.
    fn renamed(&self, model: &str, alias: &str) -> impl Iterator<Item = Candidate> {
        let found = self.by_model.get_key_value(model);
        let name = found.and_then(|(name, _)| (**name != *alias).then(|| Arc::clone(name)));
        let candidates = found.into_iter().flat_map(|(_, candidates)| candidates);
        candidates.map(move |one| Candidate {
            backend: Arc::clone(&one.backend),
            model: name.clone(),
        })
    }

    /// Returns the candidates of an alias: each backend that serves one of the alias's models, with
    /// the first model that it serves. A model `name` of the alias also matches Ollama's
    /// `name:latest`.
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
        candidates
    }
}
