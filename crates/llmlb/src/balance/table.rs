//! What is known about all backends at one moment, arranged for looking it up.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, HashSet};
use std::sync::{Arc, OnceLock};

use bytes::Bytes;

use super::backend::{Backend, State};
use super::clock::Moment;
use super::model::{Model, Models};
use super::queue::Queue;
use super::route::Route;
use super::routes::Routes;
use crate::backend_id::BackendId;
use crate::config::{Alias, Kind};

/// What is known at one moment.
#[derive(Debug)]
pub(crate) struct Table {
    /// In the order of the configuration.
    pub(crate) backends: Vec<Arc<Backend>>,
    routes: Routes,
    /// For requests that only Ollama understands.
    ollama: Routes,
    /// Every model of a backend that is up, once, as its first backend describes it; then the
    /// aliases.
    models: Vec<Model>,
    /// The place of each in that list.
    places: HashMap<Arc<str>, usize>,
    /// The list as JSON, made when it is first needed.
    list: OnceLock<Bytes>,
}

impl Table {
    pub(super) fn new(backends: Vec<Arc<Backend>>, aliases: &[Alias], queue: &Arc<Queue>) -> Self {
        let routes = Routes::new(&backends, None, aliases, queue);
        let models = models(&backends, aliases, &routes);
        let places = models.iter().enumerate();
        Self {
            places: places
                .map(|(at, model)| (Arc::clone(&model.id), at))
                .collect(),
            models,
            list: OnceLock::new(),
            ollama: Routes::new(&backends, Some(Kind::Ollama), aliases, queue),
            routes,
            backends,
        }
    }

    /// Who serves a model; who serves a request that names none. Of this kind alone, if one is given.
    pub(super) fn route(&self, kind: Option<Kind>, model: Option<&str>) -> Option<&Arc<Route>> {
        self.routes(kind).get(model)
    }

    fn routes(&self, kind: Option<Kind>) -> &Routes {
        match kind {
            Some(Kind::Ollama) => &self.ollama,
            _ => &self.routes,
        }
    }

    /// True if for some model this backend is the only one that is up and not ejected.
    pub(super) fn is_last(&self, id: BackendId, now: Moment) -> bool {
        self.routes.is_last(id, now) || self.ollama.is_last(id, now)
    }

    /// Whether it is known of every backend what it serves.
    pub(super) fn is_complete(&self) -> bool {
        !self.backends.is_empty() && self.backends.iter().all(|one| one.is_known())
    }

    /// Whether there is a backend of this kind, as far as is known.
    pub(crate) fn may_have(&self, kind: Kind) -> bool {
        let mut backends = self.backends.iter();
        !self.is_complete() || backends.any(|one| one.kind() == Some(kind))
    }

    pub(crate) fn up(&self) -> usize {
        self.backends.iter().filter(|one| one.is_up()).count()
    }

    /// The model or alias that is listed by this name.
    pub(crate) fn model(&self, id: &str) -> Option<&Model> {
        self.models.get(*self.places.get(id)?)
    }

    /// The answer to `/v1/models`.
    pub(crate) fn list(&self) -> Bytes {
        let list = self.list.get_or_init(|| {
            let mut text = String::from(r#"{"object":"list","data":["#);
            for (at, model) in self.models.iter().enumerate() {
                if at > 0 {
                    text.push(',');
                }
                model.write_json(&mut text);
            }
            text.push_str("]}");
            text.into()
        });
        list.clone()
    }

    /// The names of all models and aliases, sorted. Of this kind alone, if one is given.
    pub(crate) fn model_names(&self, kind: Option<Kind>) -> Vec<&str> {
        self.routes(kind).names()
    }
}

/// What `/v1/models` lists.
fn models(backends: &[Arc<Backend>], aliases: &[Alias], routes: &Routes) -> Vec<Model> {
    let hidden: HashSet<&str> = aliases.iter().map(|alias| alias.name.as_str()).collect();
    let told = backends.iter().filter_map(|backend| match backend.state() {
        State::Up(models) => Some(models),
        State::Down(_) => None,
    });
    let told: Vec<Arc<Models>> = told.collect();
    let mut models = Vec::new();
    let mut described: HashMap<&str, &Model> = HashMap::new();
    for model in told.iter().flat_map(|models| models.iter()) {
        if let Entry::Vacant(entry) = described.entry(&model.id) {
            entry.insert(model);
            if !hidden.contains(&*model.id) {
                models.push(model.clone());
            }
        }
    }
    for alias in aliases {
        let route = routes.get(Some(&alias.name));
        let candidates = route.map_or(&[][..], |route| &route.candidates);
        let first = candidates.iter().find(|one| one.backend.is_up());
        let real = first.map(|one| one.model.as_deref().unwrap_or(&alias.name));
        if let Some(model) = real.and_then(|real| described.get(real)) {
            models.push(model.named(&alias.name));
        }
    }
    models
}
