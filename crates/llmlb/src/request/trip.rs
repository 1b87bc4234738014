//! One line of the log for each request, when it is over. Only with `-v`: it is not even made
//! otherwise.

use std::time::Instant;

use http::{Method, request};

/// What is told of a request. Never what it says, nor what is answered.
#[derive(Debug)]
pub(crate) struct Trip {
    method: Method,
    path: String,
    pub(crate) model: Option<String>,
    started: Instant,
    pub(crate) backend: Option<String>,
    pub(crate) status: u16,
    /// When the first byte of the answer came.
    pub(crate) first_byte: Option<Instant>,
    pub(crate) bytes: u64,
}

impl Trip {
    /// `None`: nobody wants to know.
    pub(crate) fn start(head: &request::Parts) -> Option<Box<Self>> {
        tracing::enabled!(tracing::Level::DEBUG).then(|| {
            Box::new(Self {
                method: head.method.clone(),
                path: head.uri.path().to_owned(),
                model: None,
                started: Instant::now(),
                backend: None,
                status: 0,
                first_byte: None,
                bytes: 0,
            })
        })
    }

    /// Tells how it ended.
    pub(crate) fn tell(&self, outcome: &str) {
        let ms = |until: Instant| {
            let passed = until.saturating_duration_since(self.started);
            u64::try_from(passed.as_millis()).unwrap_or(u64::MAX)
        };
        tracing::debug!(
            method = %self.method,
            path = self.path,
            model = self.model,
            backend = self.backend,
            status = self.status,
            bytes = self.bytes,
            first_byte_ms = self.first_byte.map(ms),
            ms = ms(Instant::now()),
            "{outcome}"
        );
    }
}
