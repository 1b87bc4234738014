//! One upstream LLM server: where it is, what it serves, how busy it is.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use http::{HeaderValue, Uri, uri};
use serde_json::Value;
use tokio::sync::Notify;

use crate::config;

/// An upstream LLM server.
#[derive(Debug)]
pub(crate) struct Backend {
    pub(crate) name: String,
    /// The name as a response header.
    pub(crate) label: HeaderValue,
    pub(crate) url: config::BackendUrl,
    /// What the configuration says it serves; otherwise it is asked.
    pub(crate) fixed_models: Option<Vec<String>>,
    /// The `Authorization` that this backend wants.
    pub(crate) authorization: Option<HeaderValue>,
    state: Mutex<State>,
    /// It said once what it serves.
    has_told: AtomicBool,
    outstanding: AtomicUsize,
    requests: AtomicU64,
    /// Wakes the probe: something happened that it should look at.
    pub(crate) doubt: Notify,
}

/// Whether a backend can be used.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum State {
    /// It answers, and serves these models, in the form in which it told us.
    Up(Arc<Vec<Value>>),
    /// It does not, for this reason.
    Down(String),
}

impl State {
    /// What a backend is before it was asked.
    pub(crate) fn unasked() -> Self {
        Self::Down("it has not answered yet".to_owned())
    }
}

impl Backend {
    pub(crate) fn new(backend: config::Backend) -> Self {
        let authorization = backend.api_key.as_ref().and_then(|key| {
            let mut value = HeaderValue::try_from(format!("Bearer {}", key.expose())).ok()?;
            value.set_sensitive(true);
            Some(value)
        });
        Self {
            label: HeaderValue::try_from(&backend.name)
                .unwrap_or_else(|_| HeaderValue::from_static("unnamed")),
            name: backend.name,
            url: backend.url,
            fixed_models: backend.models,
            authorization,
            state: Mutex::new(State::unasked()),
            has_told: AtomicBool::new(false),
            outstanding: AtomicUsize::new(0),
            requests: AtomicU64::new(0),
            doubt: Notify::new(),
        }
    }

    /// Where a request with this path goes.
    pub(crate) fn uri(&self, path: &uri::PathAndQuery) -> Result<Uri, http::Error> {
        let builder = Uri::builder()
            .scheme(uri::Scheme::HTTP)
            .authority(self.url.authority().clone());
        if self.url.prefix().is_empty() {
            builder.path_and_query(path.clone()).build()
        } else {
            builder
                .path_and_query(format!("{}{path}", self.url.prefix()))
                .build()
        }
    }

    pub(crate) fn state(&self) -> State {
        self.lock().clone()
    }

    pub(crate) fn is_up(&self) -> bool {
        matches!(*self.lock(), State::Up(_))
    }

    /// Puts a new state in place and returns the old one.
    pub(super) fn replace_state(&self, state: State) -> State {
        if matches!(state, State::Up(_)) {
            self.has_told.store(true, Ordering::Relaxed);
        }
        std::mem::replace(&mut *self.lock(), state)
    }

    /// Whether it is known what it serves, be it up or down.
    pub(crate) fn is_known(&self) -> bool {
        self.fixed_models.is_some() || self.has_told.load(Ordering::Relaxed)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How many requests it is working on for us.
    pub(crate) fn outstanding(&self) -> usize {
        self.outstanding.load(Ordering::Relaxed)
    }

    /// How many requests it was sent.
    pub(crate) fn requests(&self) -> u64 {
        self.requests.load(Ordering::Relaxed)
    }

    /// Counts a request to it, until the slot is dropped.
    pub(crate) fn occupy(self: &Arc<Self>) -> Slot {
        self.outstanding.fetch_add(1, Ordering::Relaxed);
        self.requests.fetch_add(1, Ordering::Relaxed);
        Slot(Arc::clone(self))
    }
}

/// One request that a backend is working on.
#[derive(Debug)]
pub(crate) struct Slot(Arc<Backend>);

impl Slot {
    pub(crate) fn backend(&self) -> &Arc<Backend> {
        &self.0
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        self.0.outstanding.fetch_sub(1, Ordering::Relaxed);
    }
}
