//! One upstream LLM server: where it is, what it serves, how busy it is.

use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use http::{HeaderName, HeaderValue, StatusCode, header};

use super::backend_health::BackendHealth;
use super::breaker::Verdict;
use super::clock::Moment;
use super::endpoints::{EndpointKey, Endpoints};
use super::model::Models;
use super::stats::BackendStats;
use super::suspicion::Suspicion;
use super::usage_opt_outs::UsageOptOuts;
use crate::backend_id::BackendId;
use crate::config::{self, Kind};

/// An upstream LLM server.
#[derive(Debug)]
pub(crate) struct Backend {
    pub(crate) id: BackendId,
    pub(crate) name: String,
    /// What clients see instead of the name, as a response header.
    pub(crate) label: HeaderValue,
    pub(crate) url: config::BackendUrl,
    pub(crate) settings: BackendSettings,
    /// Number of a [`Kind`]. `u8::MAX` means that the kind is not known.
    kind: AtomicU8,
    known: Mutex<Known>,
    /// The backend has reported its models at least once.
    has_told: AtomicBool,
    pub(crate) health: BackendHealth,
    pub(super) learned: Learned,
    pub(super) stats: BackendStats,
}

/// Properties of a backend that do not change.
#[derive(Debug)]
pub(crate) struct BackendSettings {
    /// The backend was found on this machine; the configuration does not name it.
    pub(crate) is_discovered: bool,
    /// Models that the configuration lists; otherwise the backend is asked.
    pub(crate) fixed_models: Option<Vec<String>>,
    /// Patterns of the models that the backend is used for.
    only_models: Option<Vec<String>>,
    /// Header field and value of the backend's key.
    pub(crate) credential: Option<(HeaderName, HeaderValue)>,
    /// Relative share of the requests.
    pub(crate) weight: u32,
    /// Maximum number of concurrent requests: `max_concurrent`.
    pub(crate) limit: Option<u32>,
    /// Connections are reused after error responses too.
    pub(crate) reuse_after_errors: bool,
    /// The configuration names the kind of the backend.
    is_kind_given: bool,
}

/// Facts learned from the responses of a backend. They are discarded when the backend comes up anew, since
/// that may be another program.
#[derive(Debug, Default)]
pub(super) struct Learned {
    /// Models for which `include_usage` is not added.
    usage_opt_outs: UsageOptOuts,
    /// Endpoints that the backend serves or lacks.
    endpoints: Endpoints,
    /// The last responses that a client may have provoked.
    pub(super) suspicion: Suspicion,
}

impl Learned {
    fn clear(&self) {
        self.usage_opt_outs.clear();
        self.endpoints.clear();
        self.suspicion.clear();
    }
}

/// Whether a backend can be used.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum State {
    /// It answers, and serves these models.
    Up(Arc<Models>),
    /// It does not, for this reason.
    Down(String),
}

/// What is known about a backend.
#[derive(Debug)]
struct Known {
    state: State,
    /// The models that it serves, or served before it went down.
    served: Arc<[Arc<str>]>,
}

impl State {
    /// What a backend is before it was asked.
    pub(crate) fn unasked() -> Self {
        Self::Down("it has not answered yet".to_owned())
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
        let fixed = backend.models.iter().flatten();
        let only = backend.only_models.as_deref();
        let fixed = fixed.filter(|model| is_allowed(only, model));
        let served = fixed.map(|model| Arc::from(model.as_str())).collect();
        Self {
            id: BackendId(0),
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
                is_kind_given: backend.kind.is_some(),
            },
            known: Mutex::new(Known {
                state: State::unasked(),
                served,
            }),
            has_told: AtomicBool::new(false),
            health: BackendHealth::default(),
            learned: Learned::default(),
            stats: BackendStats::default(),
        }
    }

    /// A backend that was found on this machine.
    pub(crate) fn discovered(backend: config::Backend) -> Self {
        let mut backend = Self::new(backend);
        backend.settings.is_discovered = true;
        backend
    }

    /// What clients see instead of the name.
    pub(crate) fn label(&self) -> &str {
        self.label.to_str().unwrap_or_default()
    }

    /// Notes whether the backend refused the last connection.
    pub(crate) fn set_refuses_connections(&self, refuses: bool) {
        // Another user's program may listen on the port of a discovered backend by now: only a probe
        // checks that.
        let refuses = refuses && !self.settings.is_discovered;
        self.health.set_refuses_connections(refuses);
    }

    /// Whether it may be asked for the usage of a stream of this model.
    pub(crate) fn takes_usage_option(&self, model: &str) -> bool {
        !self.learned.usage_opt_outs.has(model, Moment::now)
    }

    /// It is not to be asked, for this reason.
    pub(crate) fn refuses_usage_option(&self, model: &str, why: &str) {
        if self.learned.usage_opt_outs.note(model, Moment::now()) {
            let name = &self.name;
            tracing::warn!("backend {name} {why}: usage of streams of {model:?} is estimated");
        }
    }

    /// True if it is known not to serve this endpoint.
    pub(super) fn lacks(&self, endpoint: EndpointKey, now: Moment) -> bool {
        self.stats.lacks_any() && self.learned.endpoints.lacks(endpoint, now)
    }

    /// True if a 404, 405 or 501 may mean that it does not serve this endpoint.
    pub(crate) fn may_lack(&self, endpoint: EndpointKey) -> bool {
        !self.learned.endpoints.has_served(endpoint)
    }

    /// Notes that it does not serve an endpoint, as it responded to this path.
    pub(crate) fn note_missing(&self, endpoint: EndpointKey, status: StatusCode, path: &str) {
        if self.learned.endpoints.note_missing(endpoint, Moment::now()) {
            self.stats.set_lacks_any(true);
            let (name, status) = (&self.name, status.as_u16());
            tracing::info!(
                "backend {name} responded {status} to POST {path:?}: other backends are preferred \
                 for this endpoint for 10 minutes"
            );
        }
    }

    /// Notes that it serves an endpoint.
    pub(crate) fn note_served(&self, endpoint: EndpointKey) {
        if !self.learned.endpoints.has_served(endpoint) {
            self.learned.endpoints.note_served(endpoint, Moment::now());
        }
    }

    /// Notes a response with which the backend rejects our credential.
    pub(crate) fn note_rejected_key(&self, status: StatusCode) {
        if self.learned.suspicion.note_rejected_key() {
            let (name, status) = (&self.name, status.as_u16());
            tracing::warn!(
                "backend {name} rejected our key with {status}: clients get 502 backend_auth. \
                 Check the variable that its api_key_env names"
            );
        }
    }

    /// Which program or service it is, if that is known.
    pub(crate) fn kind(&self) -> Option<Kind> {
        Kind::from_number(self.kind.load(Ordering::Relaxed))
    }

    /// Takes note of what it was found to be: another program may listen there by now. What the
    /// configuration says stands.
    pub(crate) fn note_kind(&self, kind: Kind) {
        if !self.settings.is_kind_given {
            self.kind.store(kind as u8, Ordering::Relaxed);
        }
    }

    pub(crate) fn state(&self) -> State {
        self.lock().state.clone()
    }

    pub(crate) fn is_up(&self) -> bool {
        self.stats.is_up()
    }

    /// Puts a new state in place and returns the old one.
    pub(super) fn replace_state(&self, mut state: State) -> State {
        let mut known = self.lock();
        if let State::Up(models) = &mut state {
            if let State::Up(before) = &known.state {
                Arc::make_mut(models).keep_created(before);
            }
            known.served = models.iter().map(|model| Arc::clone(&model.id)).collect();
            self.has_told.store(true, Ordering::Relaxed);
        }
        let is_up = matches!(state, State::Up(_));
        if is_up && matches!(known.state, State::Down(_)) {
            self.learned.clear();
            self.stats.set_lacks_any(false);
        }
        self.stats.set_up(is_up);
        std::mem::replace(&mut known.state, state)
    }

    /// Whether it is known what it serves, be it up or down.
    pub(crate) fn is_known(&self) -> bool {
        self.settings.fixed_models.is_some() || self.has_told.load(Ordering::Relaxed)
    }

    /// The names of the models that it serves, or served before it went down.
    pub(super) fn served(&self) -> Arc<[Arc<str>]> {
        Arc::clone(&self.lock().served)
    }

    /// Of the models that it tells, those that it is to be used for.
    pub(crate) fn offered(&self, mut models: Models) -> Models {
        let only = self.settings.only_models.as_deref();
        models.retain(|id| is_allowed(only, id));
        models
    }

    fn lock(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How many requests it is working on for us.
    pub(crate) fn outstanding(&self) -> usize {
        self.stats.outstanding() as usize
    }

    /// How many requests it was sent.
    pub(crate) fn requests(&self) -> u64 {
        self.stats.requests()
    }

    /// Whether it gets no requests, or one now and then, because the last ones failed.
    pub(crate) fn ejected(&self) -> bool {
        self.stats.verdict(Moment::now()) != Verdict::Sound
    }

    /// The number of requests that it gets at a time.
    pub(super) fn places(&self) -> u32 {
        self.settings.limit.unwrap_or(u32::MAX)
    }
}

/// No list allows all.
fn is_allowed(only: Option<&[String]>, name: &str) -> bool {
    only.is_none_or(|only| config::is_among(only, name))
}
