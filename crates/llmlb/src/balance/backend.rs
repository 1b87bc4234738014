//! One upstream LLM server: its address, its models and its load.

use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use http::{HeaderName, HeaderValue, StatusCode, header};

use super::backend_health::BackendHealth;
use super::breaker::Verdict;
use super::clock::Moment;
use super::endpoints::{EndpointKey, Endpoints};
use super::model::Models;
use super::stats::BackendStats;
use super::suspicion::Suspicion;
use super::traffic::Traffic;
use super::usage_opt_outs::UsageOptOuts;
use crate::backend_id::BackendId;
use crate::config::{self, Kind};
use crate::issued_ids::BackendKey;

#[derive(Debug)]
pub(crate) struct Backend {
    pub(crate) id: BackendId,
    /// Key that identifies the backend in files and in Redis, where issued ids are stored with it.
    /// Set when the backend is added to the pool.
    pub(super) key: BackendKey,
    pub(crate) name: String,
    /// Name that clients see in `x-llmlb-backend`. A default name is replaced, because it contains
    /// the backend's host and port.
    pub(crate) label: HeaderValue,
    pub(crate) url: config::BackendUrl,
    pub(crate) settings: BackendSettings,
    /// Kind of the backend, as the number of a [`Kind`]. `u8::MAX` means that the kind is not
    /// known.
    kind: AtomicU8,
    current: Arc<Mutex<StateAndModels>>,
    pub(crate) health: Arc<BackendHealth>,
    pub(super) learned: Arc<Learned>,
    pub(super) stats: Arc<BackendStats>,
    /// Sums of what the backend has served.
    pub(crate) traffic: Arc<Traffic>,
}

/// Settings of a backend. A reload of the configuration that changes them replaces the [`Backend`] by one
/// with the same id and state: requests in flight keep the settings with which they began.
#[derive(Debug, PartialEq, Eq)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "each is an independent setting"
)]
pub(crate) struct BackendSettings {
    /// True if the backend was discovered on this machine, and the configuration does not name it.
    pub(crate) is_discovered: bool,
    /// Models that the configuration lists (`backend.models`), which replace the list that the
    /// backend reports. `None` if probes request that list.
    pub(crate) fixed_models: Option<Vec<String>>,
    /// Patterns of the models for which the backend is used (`backend.only_models`).
    only_models: Option<Vec<String>>,
    /// Header field and value with which a request to the backend carries the backend's key.
    pub(crate) credential: Option<(HeaderName, HeaderValue)>,
    /// Share of the requests that the backend gets, relative to the other backends.
    pub(crate) weight: u32,
    /// Maximum number of concurrent requests at the backend (`max_concurrent`). Further ones wait
    /// or go to another backend.
    pub(crate) limit: Option<u32>,
    /// True if backend connections are also reused after an error response to a request with a body
    /// (`backend.reuse_after_errors`). Only safe for backends that always read the whole request.
    pub(crate) reuse_after_errors: bool,
    /// True if the backend accepts WebSockets on `/v1/responses` (`backend.websocket`).
    accepts_websockets: bool,
    /// True if the configuration names the kind of the backend. Probes then never replace the kind.
    is_kind_given: bool,
}

/// Facts learned from the responses of a backend. They are discarded when the backend comes up anew, since
/// another program may run at its address.
#[derive(Debug, Default)]
pub(super) struct Learned {
    /// Models for which `include_usage` is not added to requests, since the backend rejects the
    /// option or reports usage where it cannot be hidden from the client.
    usage_opt_outs: UsageOptOuts,
    /// Endpoints that the backend serves or lacks, so that requests avoid a backend that would
    /// respond 404.
    endpoints: Endpoints,
    /// Failed responses since the last success that a client may have provoked. They eject the
    /// backend only if two clients or three prompts caused them: one bad prompt must not eject a
    /// healthy backend.
    pub(super) suspicion: Suspicion,
}

impl Learned {
    fn clear(&self) {
        self.usage_opt_outs.clear();
        self.endpoints.clear();
        self.suspicion.clear();
    }
}

/// State of a backend, as the last probe or the last failed connection showed it. Only a backend
/// that is up gets requests.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum BackendState {
    /// The backend responds and serves these models.
    Up(Arc<Models>),
    /// The backend cannot be used, for this reason.
    Down(String),
}

/// State of a backend, and the models that it served last.
#[derive(Debug)]
struct StateAndModels {
    state: BackendState,
    /// Models that the backend serves, or served before it went down.
    served: Arc<[Arc<str>]>,
    /// True if the backend has reported its models at least once. Its models then count as known,
    /// even while the backend is down. Until all models are known, a request for an unknown model
    /// gets 503 instead of 404.
    has_reported: bool,
}

impl BackendState {
    /// Returns the state of a backend before its first probe, in which the backend gets no
    /// requests.
    pub(crate) fn not_probed() -> Self {
        Self::Down("the backend has not responded to a probe yet".to_owned())
    }
}

impl Backend {
    pub(crate) fn new(backend: config::Backend) -> Self {
        let credential = backend.api_key.as_ref().and_then(|key| {
            let (name, value) = match backend.kind {
                Some(Kind::Anthropic) => (
                    HeaderName::from_static("x-api-key"),
                    key.expose().to_owned(),
                ),
                _ => (header::AUTHORIZATION, format!("Bearer {}", key.expose())),
            };
            let mut value = HeaderValue::try_from(value).ok()?;
            value.set_sensitive(true);
            Some((name, value))
        });
        Self {
            id: BackendId(0),
            key: BackendKey(0),
            label: HeaderValue::try_from(&backend.label)
                .unwrap_or_else(|_| HeaderValue::from_static("unnamed")),
            name: backend.name,
            url: backend.url,
            kind: AtomicU8::new(backend.kind.map_or(u8::MAX, |kind| kind as u8)),
            settings: BackendSettings {
                is_discovered: false,
                fixed_models: backend.models,
                only_models: backend.only_models,
                credential,
                weight: backend.weight,
                limit: backend.max_concurrent,
                reuse_after_errors: backend.reuse_after_errors,
                accepts_websockets: backend.websocket,
                is_kind_given: backend.kind.is_some(),
            },
            current: Arc::new(Mutex::new(StateAndModels {
                state: BackendState::not_probed(),
                served: Arc::default(),
                has_reported: false,
            })),
            health: Arc::default(),
            learned: Arc::default(),
            stats: Arc::default(),
            traffic: Arc::default(),
        }
        .with_fixed_models()
    }

    /// Returns a backend with new settings at the same URL. It keeps the old backend's id, state,
    /// load, latency, failures and affinity, so that a reload does not forget them.
    pub(crate) fn with_state_of(mut self, old: &Self) -> Self {
        let kind = match (old.settings.is_kind_given, old.kind()) {
            (false, Some(kind)) => Some(kind),
            _ => None,
        };
        if let Some(kind) = kind {
            self.note_kind(kind);
        }
        self.id = old.id;
        self.key = old.key;
        self.current = Arc::clone(&old.current);
        self.health = Arc::clone(&old.health);
        self.learned = Arc::clone(&old.learned);
        self.stats = Arc::clone(&old.stats);
        self.traffic = Arc::clone(&old.traffic);
        self
    }

    /// Lists the configured models as served even while the backend is down, so that they do not
    /// become unknown to clients.
    fn with_fixed_models(self) -> Self {
        let served = self.fixed_models();
        if let Some(served) = served {
            self.lock().served = served;
        }
        self
    }

    /// Returns the models that the configuration lists. `None` if the backend reports its models.
    fn fixed_models(&self) -> Option<Arc<[Arc<str>]>> {
        let fixed = self.settings.fixed_models.as_ref()?.iter();
        let only = self.settings.only_models.as_deref();
        let fixed = fixed.filter(|model| is_allowed(only, model));
        Some(fixed.map(|model| Arc::from(model.as_str())).collect())
    }

    /// Applies the settings `models` and `only_models` to the list that the last successful probe returned.
    /// Needed after a reload if the probe with the new settings failed.
    pub(super) fn restrict_models(&self) {
        let fixed = self.fixed_models();
        let mut current = self.lock();
        let only = self.settings.only_models.as_deref();
        if let BackendState::Up(models) = &mut current.state {
            Arc::make_mut(models).retain(|id| is_allowed(only, id));
        }
        let served = current.served.iter();
        let allowed = served.filter(|id| is_allowed(only, id)).cloned();
        current.served = fixed.unwrap_or_else(|| allowed.collect());
    }

    /// True if a reloaded backend has the same settings as this one, so that this one stays in use.
    pub(super) fn has_same_settings(&self, other: &Self) -> bool {
        let kind = |backend: &Self| backend.settings.is_kind_given.then(|| backend.kind());
        self.name == other.name
            && self.label == other.label
            && kind(self) == kind(other)
            && self.settings == other.settings
    }

    /// True while the configuration does not name the backend any more: it gets no further
    /// requests.
    pub(crate) fn is_removed(&self) -> bool {
        self.stats.is_removed()
    }

    /// Returns a backend that was discovered on this machine and is not in the configuration.
    pub(crate) fn discovered(backend: config::Backend) -> Self {
        let mut backend = Self::new(backend);
        backend.settings.is_discovered = true;
        backend
    }

    pub(crate) fn label(&self) -> &str {
        self.label.to_str().unwrap_or_default()
    }

    /// Notes whether the backend refused the last connection. If it did, a request still tries the
    /// backend when no other is left.
    pub(crate) fn set_refuses_connections(&self, refuses: bool) {
        // A discovered backend is not retried without a probe: another user's program may listen on
        // its port by now, and only the probe checks the owner.
        let refuses = refuses && !self.settings.is_discovered;
        self.health.set_refuses_connections(refuses);
    }

    /// True if `include_usage` may be added to a streaming request for this model, so that the
    /// backend reports the usage.
    pub(crate) fn accepts_usage_option(&self, model: &str) -> bool {
        !self.learned.usage_opt_outs.has(model, Moment::now)
    }

    /// Stops adding `include_usage` to requests for this model for an hour, because of `why`, which
    /// is logged. The usage of the model's streams is estimated meanwhile.
    pub(crate) fn opt_out_of_usage(&self, model: &str, why: &str) {
        if self.learned.usage_opt_outs.note(model, Moment::now()) {
            let name = &self.name;
            tracing::warn!("backend {name} {why}: usage of streams of {model:?} is estimated");
        }
    }

    /// True if the backend recently showed that it does not serve this endpoint, so that requests
    /// prefer other backends. A backend lacks WebSockets unless the configuration or an accepted
    /// handshake shows otherwise.
    pub(super) fn lacks(&self, endpoint: EndpointKey, now: Moment) -> bool {
        let endpoints = &self.learned.endpoints;
        let is_unproven = endpoint.is_websocket()
            && !self.settings.accepts_websockets
            && !endpoints.has_served(endpoint);
        is_unproven || (self.stats.lacks_any() && endpoints.lacks(endpoint, now))
    }

    /// True if a 404, 405 or 501 may mean that the backend does not serve this endpoint. False
    /// after a success on the endpoint: then the response concerns only its request.
    pub(crate) fn may_lack(&self, endpoint: EndpointKey) -> bool {
        !self.learned.endpoints.has_served(endpoint)
    }

    /// Notes that the backend does not serve an endpoint, after it responded `status` to this path.
    /// Requests then prefer other backends for ten minutes.
    pub(crate) fn note_missing(&self, endpoint: EndpointKey, status: StatusCode, path: &str) {
        if self.learned.endpoints.note_missing(endpoint, Moment::now()) {
            self.stats.set_lacks_any(true);
            let (name, status) = (&self.name, status.as_u16());
            if endpoint.is_websocket() {
                tracing::info!(
                    "backend {name} responded {status} to a WebSocket handshake on {path:?}: it gets \
                     no handshakes for 10 minutes"
                );
            } else {
                tracing::info!(
                    "backend {name} responded {status} to POST {path:?}: other backends are preferred \
                     for this endpoint for 10 minutes"
                );
            }
        }
    }

    /// Notes that the backend serves an endpoint, so that a later 404, 405 or 501 counts only for
    /// its request.
    pub(crate) fn note_served(&self, endpoint: EndpointKey) {
        if !self.learned.endpoints.has_served(endpoint) {
            self.learned.endpoints.note_served(endpoint, Moment::now());
        }
    }

    /// Notes that the backend rejected our credential, and logs a warning for the first rejection
    /// since the last success.
    pub(crate) fn note_rejected_key(&self, status: StatusCode) {
        if self.learned.suspicion.note_rejected_key() {
            let (name, status) = (&self.name, status.as_u16());
            tracing::warn!(
                "backend {name} rejected our key with {status}: clients get 502 backend_auth. \
                 Check the variable that backend.api_key_env names"
            );
        }
    }

    pub(crate) fn kind(&self) -> Option<Kind> {
        Kind::from_number(self.kind.load(Ordering::Relaxed))
    }

    /// Notes the kind that a probe found. The kind can change, because another program may run at the
    /// backend's address now. A configured kind is never replaced.
    pub(crate) fn note_kind(&self, kind: Kind) {
        if !self.settings.is_kind_given {
            self.kind.store(kind as u8, Ordering::Relaxed);
        }
    }

    pub(crate) fn state(&self) -> BackendState {
        self.lock().state.clone()
    }

    /// True if the backend may get requests, unless it is ejected.
    pub(crate) fn is_up(&self) -> bool {
        self.stats.is_up()
    }

    /// True if the last probe or request found that the backend responds. A drained backend responds too.
    pub(crate) fn responds(&self) -> bool {
        self.stats.responds()
    }

    /// True if an operator has drained the backend: it gets no further requests until it is undrained.
    pub(crate) fn is_drained(&self) -> bool {
        self.stats.is_drained()
    }

    /// Replaces the state of the backend and returns the old state. When the backend comes up,
    /// facts learned about its previous program are discarded.
    pub(super) fn replace_state(&self, mut state: BackendState) -> BackendState {
        let mut current = self.lock();
        if let BackendState::Up(models) = &mut state {
            if let BackendState::Up(before) = &current.state {
                Arc::make_mut(models).keep_created(before);
            }
            current.served = models.iter().map(|model| Arc::clone(&model.id)).collect();
            current.has_reported = true;
        }
        let is_up = matches!(state, BackendState::Up(_));
        if is_up && matches!(current.state, BackendState::Down(_)) {
            self.learned.clear();
            self.stats.set_lacks_any(false);
        }
        self.stats.set_up(is_up);
        std::mem::replace(&mut current.state, state)
    }

    /// True if the backend has reported its models or the configuration lists them, even if the
    /// backend is down now. Until this is true for all backends, a request for an unknown model
    /// gets 503 instead of 404.
    pub(crate) fn has_known_models(&self) -> bool {
        self.settings.fixed_models.is_some() || self.lock().has_reported
    }

    /// Returns the names of the models that the backend serves, or served before it went down.
    pub(super) fn model_names(&self) -> Arc<[Arc<str>]> {
        Arc::clone(&self.lock().served)
    }

    /// Removes the models that `only_models` excludes from a backend's list, so that no request for
    /// them is sent there.
    pub(crate) fn allowed_models(&self, mut models: Models) -> Models {
        let only = self.settings.only_models.as_deref();
        models.retain(|id| is_allowed(only, id));
        models
    }

    fn lock(&self) -> MutexGuard<'_, StateAndModels> {
        self.current.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn outstanding(&self) -> usize {
        self.stats.outstanding() as usize
    }

    pub(crate) fn requests(&self) -> u64 {
        self.stats.requests()
    }

    /// Number of ejections and of pauses that the backend requested.
    pub(crate) fn ejections(&self) -> u64 {
        self.stats.ejections()
    }

    /// True if the backend gets no requests, or a single trial, because its last requests failed.
    pub(crate) fn is_ejected(&self) -> bool {
        self.stats.verdict(Moment::now()) != Verdict::Healthy
    }

    /// Returns the maximum number of concurrent requests at the backend; `u32::MAX` if it has no
    /// limit.
    pub(super) fn max_slots(&self) -> u32 {
        self.settings.limit.unwrap_or(u32::MAX)
    }
}

/// True if a model name matches one of the patterns in `only_models`. Without `only_models` every
/// name is allowed.
fn is_allowed(only: Option<&[String]>, name: &str) -> bool {
    only.is_none_or(|only| config::is_among(only, name))
}
