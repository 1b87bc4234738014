//! An immutable table of all backends, routes and models. Each change builds a new one.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, HashSet};
use std::sync::{Arc, OnceLock};

use bytes::Bytes;

use super::backend::{Backend, BackendState};
use super::clock::Moment;
use super::endpoints::EndpointKey;
use super::model::{Model, Models};
use super::queue::Queue;
use super::route::Route;
use super::routes::Routes;
use crate::backend_id::BackendId;
use crate::config::{Alias, Kind};
use crate::request_settings::RequestSettings;

/// Backends, routes and models as of one moment, so that a request reads all of them consistently.
#[derive(Debug)]
pub(crate) struct Table {
    /// All backends: those of the configuration in its order, then the discovered ones.
    pub(crate) backends: Vec<Arc<Backend>>,
    routes: Routes,
    /// Routes of requests that only Ollama can serve.
    ollama: Routes,
    /// Every model of a backend that is up and not drained, once, as its first backend describes it; then the
    /// aliases.
    models: Vec<Model>,
    /// Indices in `models` by name, so that a model is found without a search.
    indices: HashMap<Arc<str>, usize>,
    /// Body of `/v1/models`, built at the first use.
    list: OnceLock<Bytes>,
    aliases: Arc<[Alias]>,
    /// Settings of requests. They are a part of the table, so that the backends of a request and its
    /// settings belong to the same configuration.
    settings: Arc<RequestSettings>,
}

impl Table {
    pub(super) fn new(
        backends: Vec<Arc<Backend>>,
        aliases: Arc<[Alias]>,
        settings: Arc<RequestSettings>,
        queue: &Arc<Queue>,
    ) -> Self {
        let routes = Routes::new(&backends, None, &aliases, queue);
        let models = models(&backends, &aliases, &routes);
        let indexed = models.iter().enumerate();
        Self {
            indices: indexed
                .map(|(index, model)| (Arc::clone(&model.id), index))
                .collect(),
            models,
            list: OnceLock::new(),
            ollama: Routes::new(&backends, Some(Kind::Ollama), &aliases, queue),
            routes,
            backends,
            aliases,
            settings,
        }
    }

    pub(crate) fn alias(&self, name: &str) -> Option<&Alias> {
        self.aliases.iter().find(|alias| alias.name == name)
    }

    pub(crate) fn settings(&self) -> &Arc<RequestSettings> {
        &self.settings
    }

    pub(super) fn aliases(&self) -> &Arc<[Alias]> {
        &self.aliases
    }

    /// Returns the route of a model, or of requests without one; only backends of `kind`, if it is
    /// given.
    pub(super) fn route(&self, kind: Option<Kind>, model: Option<&str>) -> Option<&Arc<Route>> {
        self.routes(kind).get(model)
    }

    fn routes(&self, kind: Option<Kind>) -> &Routes {
        match kind {
            Some(Kind::Ollama) => &self.ollama,
            _ => &self.routes,
        }
    }

    /// True if some model of this backend has no other candidate that is up and not ejected. The
    /// backend is then not ejected for failures that a client may have provoked, nor for a pause
    /// that it requested.
    pub(super) fn is_last(&self, id: BackendId, now: Moment) -> bool {
        self.routes.is_last(id, now) || self.ollama.is_last(id, now)
    }

    /// True if the models of all backends are known. Until then, a request for an unknown model
    /// gets 503 instead of 404.
    pub(crate) fn is_complete(&self) -> bool {
        !self.backends.is_empty() && self.backends.iter().all(|one| one.has_known_models())
    }

    /// True if a backend of this kind (Ollama, for example) exists, or may exist because some
    /// backend has not reported its models yet. If false, requests to Ollama's own API get 404.
    pub(crate) fn may_have(&self, kind: Kind) -> bool {
        let mut backends = self.backends.iter();
        !self.is_complete() || backends.any(|one| one.kind() == Some(kind))
    }

    /// True if a backend accepts WebSockets on the path of `endpoint`: the configuration says so
    /// (`backend.websocket`), or the backend has accepted one since it came up, and it has not
    /// rejected one in the last ten minutes. If false, the handshake gets a 426, so that the client
    /// uses HTTP at once.
    pub(crate) fn accepts_websocket(&self, endpoint: EndpointKey) -> bool {
        let now = Moment::now();
        let mut backends = self.backends.iter();
        backends.any(|one| !one.lacks(endpoint, now))
    }

    pub(crate) fn up(&self) -> usize {
        self.backends.iter().filter(|one| one.is_up()).count()
    }

    pub(crate) fn model(&self, id: &str) -> Option<&Model> {
        self.models.get(*self.indices.get(id)?)
    }

    pub(crate) fn list(&self) -> Bytes {
        let list = self.list.get_or_init(|| self.list_where(|_| true));
        list.clone()
    }

    /// Returns the body of the response to `/v1/models` with only the models for which `is_listed`
    /// is true, such as those that an API key may use.
    pub(crate) fn list_where(&self, is_listed: impl Fn(&str) -> bool) -> Bytes {
        let mut text = String::from(r#"{"object":"list","data":["#);
        let listed = self.models.iter().filter(|model| is_listed(&model.id));
        for (at, model) in listed.enumerate() {
            if at > 0 {
                text.push(',');
            }
            model.write_json(&mut text);
        }
        text.push_str("]}");
        text.into()
    }

    /// Returns the names of all models and aliases, sorted; only backends of `kind`, if it is
    /// given.
    pub(crate) fn model_names(&self, kind: Option<Kind>) -> Vec<&str> {
        self.routes(kind).names()
    }
}

/// Returns the models and aliases for `/v1/models`, each name once.
fn models(backends: &[Arc<Backend>], aliases: &[Alias], routes: &Routes) -> Vec<Model> {
    let hidden: HashSet<&str> = aliases.iter().map(|alias| alias.name.as_str()).collect();
    let used = backends.iter().filter(|backend| !backend.is_drained());
    let reported = used.filter_map(|backend| match backend.state() {
        BackendState::Up(models) => Some(models),
        BackendState::Down(_) => None,
    });
    let reported: Vec<Arc<Models>> = reported.collect();
    let mut models = Vec::new();
    let mut described: HashMap<&str, &Model> = HashMap::new();
    for model in reported.iter().flat_map(|models| models.iter()) {
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
