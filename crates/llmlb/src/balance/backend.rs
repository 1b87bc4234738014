//! One upstream LLM server: where it is, what it serves, how busy it is.

use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU16, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::SystemTime;

use http::{HeaderName, HeaderValue, StatusCode, header};
use tokio::sync::Notify;

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
    /// It was found on this machine; no one named it.
    pub(crate) is_discovered: bool,
    /// What the configuration says it serves; otherwise it is asked.
    pub(crate) fixed_models: Option<Vec<String>>,
    /// The header that this backend wants its key in, and the key.
    pub(crate) credential: Option<(HeaderName, HeaderValue)>,
    /// Its share of the work.
    pub(crate) weight: u32,
    /// How many requests it gets at a time.
    pub(crate) limit: Option<u32>,
    only_models: Option<Vec<String>>,
    /// Its connections are kept after error responses too.
    pub(crate) reuse_after_errors: bool,
    /// A [`Kind`]'s place in the list of all, or one beyond if it is not known.
    kind: AtomicU8,
    /// The configuration says what it is.
    is_kind_given: bool,
    known: Mutex<Known>,
    /// It takes connections and says nothing.
    is_hung: AtomicBool,
    /// The backend is down because it refused a connection. Trying it again fails fast.
    refuses_connections: AtomicBool,
    /// Models for which `include_usage` is not added.
    usage_opt_outs: UsageOptOuts,
    /// The endpoints that it serves or lacks.
    endpoints: Endpoints,
    /// Its last responses, if they may have been provoked by a client.
    pub(super) suspicion: Suspicion,
    last_error: Mutex<Option<LastError>>,
    /// Status with which it rejected our key in the last probe, or 0.
    rejected_key: AtomicU16,
    /// It said once what it serves.
    has_told: AtomicBool,
    pub(super) stats: BackendStats,
    /// How often it has answered, a request or a probe.
    answers: AtomicU64,
    /// Bytes of the backend arrived since [`Backend::was_active`] was called last.
    was_active: AtomicBool,
    /// Wakes the probe, which then checks the backend at once.
    pub(crate) recheck: Notify,
}

/// Whether a backend can be used.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum State {
    /// It answers, and serves these models.
    Up(Arc<Models>),
    /// It does not, for this reason.
    Down(String),
}

/// The last request that a backend failed.
#[derive(Clone, Debug)]
pub(crate) struct LastError {
    /// The status of its response, if there was one.
    pub(crate) status: Option<StatusCode>,
    pub(crate) error: String,
    pub(crate) at: SystemTime,
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
            is_discovered: false,
            fixed_models: backend.models,
            credential,
            weight: backend.weight,
            limit: backend.max_concurrent,
            only_models: backend.only_models,
            reuse_after_errors: backend.reuse_after_errors,
            kind: AtomicU8::new(backend.kind.map_or(u8::MAX, |kind| kind as u8)),
            is_kind_given: backend.kind.is_some(),
            known: Mutex::new(Known {
                state: State::unasked(),
                served,
            }),
            is_hung: AtomicBool::new(false),
            refuses_connections: AtomicBool::new(false),
            usage_opt_outs: UsageOptOuts::default(),
            endpoints: Endpoints::default(),
            suspicion: Suspicion::default(),
            last_error: Mutex::new(None),
            rejected_key: AtomicU16::new(0),
            has_told: AtomicBool::new(false),
            stats: BackendStats::default(),
            answers: AtomicU64::new(0),
            was_active: AtomicBool::new(false),
            recheck: Notify::new(),
        }
    }

    /// A backend that was found on this machine.
    pub(crate) fn discovered(backend: config::Backend) -> Self {
        Self {
            is_discovered: true,
            ..Self::new(backend)
        }
    }

    /// What clients see instead of the name.
    pub(crate) fn label(&self) -> &str {
        self.label.to_str().unwrap_or_default()
    }

    /// How often it has answered.
    pub(crate) fn answers(&self) -> u64 {
        self.answers.load(Ordering::Relaxed)
    }

    pub(crate) fn has_answered(&self) {
        self.answers.fetch_add(1, Ordering::Relaxed);
        self.mark_active();
    }

    /// Notes that bytes of the backend arrived.
    pub(crate) fn mark_active(&self) {
        // Called for every chunk: the flag is written only if it changes.
        if !self.was_active.load(Ordering::Relaxed) {
            self.was_active.store(true, Ordering::Relaxed);
        }
    }

    /// True if bytes of the backend arrived since the last call.
    pub(crate) fn was_active(&self) -> bool {
        self.was_active.swap(false, Ordering::Relaxed)
    }

    /// Whether requests wait for it in vain.
    pub(crate) fn is_hung(&self) -> bool {
        self.is_hung.load(Ordering::Relaxed)
    }

    pub(crate) fn set_hung(&self, hung: bool) {
        self.is_hung.store(hung, Ordering::Relaxed);
    }

    /// True if the backend is down because it refused a connection.
    pub(super) fn refuses_connections(&self) -> bool {
        self.refuses_connections.load(Ordering::Relaxed)
    }

    pub(crate) fn set_refuses_connections(&self, refuses_connections: bool) {
        // The port of a discovered backend may be another user's by now: only the probe finds out.
        let refuses_connections = refuses_connections && !self.is_discovered;
        self.refuses_connections
            .store(refuses_connections, Ordering::Relaxed);
    }

    /// Whether it may be asked for the usage of a stream of this model.
    pub(crate) fn takes_usage_option(&self, model: &str) -> bool {
        !self.usage_opt_outs.has(model, Moment::now)
    }

    /// It is not to be asked, for this reason.
    pub(crate) fn refuses_usage_option(&self, model: &str, why: &str) {
        if self.usage_opt_outs.note(model, Moment::now()) {
            let name = &self.name;
            tracing::warn!("backend {name} {why}: usage of streams of {model:?} is estimated");
        }
    }

    /// True if it is known not to serve this endpoint.
    pub(super) fn lacks(&self, endpoint: EndpointKey, now: Moment) -> bool {
        self.stats.lacks_any() && self.endpoints.lacks(endpoint, now)
    }

    /// True if a 404, 405 or 501 may mean that it does not serve this endpoint.
    pub(crate) fn may_lack(&self, endpoint: EndpointKey) -> bool {
        !self.endpoints.has_served(endpoint)
    }

    /// Notes that it does not serve an endpoint, as it responded to this path.
    pub(crate) fn note_missing(&self, endpoint: EndpointKey, status: StatusCode, path: &str) {
        if self.endpoints.note_missing(endpoint, Moment::now()) {
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
        if !self.endpoints.has_served(endpoint) {
            self.endpoints.note_served(endpoint, Moment::now());
        }
    }

    /// Notes a response with which the backend rejects our credential.
    pub(crate) fn note_rejected_key(&self, status: StatusCode) {
        if self.suspicion.note_rejected_key() {
            let (name, status) = (&self.name, status.as_u16());
            tracing::warn!(
                "backend {name} rejected our key with {status}: clients get 502 backend_auth. \
                 Check the variable that its api_key_env names"
            );
        }
    }

    /// Status with which the backend, which is down, rejects our key.
    pub(crate) fn rejected_key(&self) -> Option<StatusCode> {
        StatusCode::from_u16(self.rejected_key.load(Ordering::Relaxed)).ok()
    }

    /// Notes whether the last probe was rejected because of our key.
    pub(crate) fn set_rejected_key(&self, status: Option<StatusCode>) {
        let status = status.map_or(0, |status| status.as_u16());
        self.rejected_key.store(status, Ordering::Relaxed);
    }

    /// Notes a failure, to be shown by `status`.
    pub(crate) fn note_error(&self, status: Option<StatusCode>, error: &str) {
        let last = LastError {
            status,
            error: error.to_owned(),
            at: SystemTime::now(),
        };
        *lock(&self.last_error) = Some(last);
    }

    pub(crate) fn last_error(&self) -> Option<LastError> {
        lock(&self.last_error).clone()
    }

    /// Which program or service it is, if that is known.
    pub(crate) fn kind(&self) -> Option<Kind> {
        let number = self.kind.load(Ordering::Relaxed);
        Kind::ALL.get(usize::from(number)).copied()
    }

    /// Takes note of what it was found to be: another program may listen there by now. What the
    /// configuration says stands.
    pub(crate) fn note_kind(&self, kind: Kind) {
        if !self.is_kind_given {
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
            // It may be another program by now.
            self.usage_opt_outs.clear();
            self.endpoints.clear();
            self.stats.set_lacks_any(false);
            self.suspicion.clear();
        }
        self.stats.set_up(is_up);
        std::mem::replace(&mut known.state, state)
    }

    /// Whether it is known what it serves, be it up or down.
    pub(crate) fn is_known(&self) -> bool {
        self.fixed_models.is_some() || self.has_told.load(Ordering::Relaxed)
    }

    /// The names of the models that it serves, or served before it went down.
    pub(super) fn served(&self) -> Arc<[Arc<str>]> {
        Arc::clone(&self.lock().served)
    }

    /// Of the models that it tells, those that it is to be used for.
    pub(crate) fn offered(&self, mut models: Models) -> Models {
        let only = self.only_models.as_deref();
        models.retain(|id| is_allowed(only, id));
        models
    }

    fn lock(&self) -> MutexGuard<'_, Known> {
        lock(&self.known)
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
        self.limit.unwrap_or(u32::MAX)
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// No list allows all.
fn is_allowed(only: Option<&[String]>, name: &str) -> bool {
    only.is_none_or(|only| config::is_among(only, name))
}
