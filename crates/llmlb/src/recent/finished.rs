//! A request that has finished.

use std::sync::Arc;
use std::time::Instant;

use http::{HeaderValue, Method};
use uuid::Uuid;

use super::attempt::{Attempt, FailedAttempt};
use crate::balance::{Backend, Comparison};
use crate::endpoint::Api;
use crate::keys::ApiKey;
use crate::meter::record::Outcome;
use crate::meter::usage::TokenUsage;
use crate::trace_context::SpanContext;

/// Maximum number of bytes of a text that a client or a backend chose.
const MAX_TEXT: usize = 256;

/// Facts of a finished request. Most are moved from the request's guard, so that no text is copied.
#[derive(Debug)]
pub(crate) struct FinishedRequest {
    /// The `x-request-id` that the client and the backend know.
    pub(crate) id: HeaderValue,
    /// Id of the usage record, also if the request has none.
    pub(crate) record_id: Uuid,
    pub(crate) method: Method,
    pub(crate) path: Box<str>,
    pub(crate) api: Api,
    pub(crate) key: Option<Arc<ApiKey>>,
    pub(crate) model: Option<String>,
    pub(crate) served_model: Option<String>,
    /// Backend that responded.
    pub(crate) backend: Option<Arc<Backend>>,
    /// The attempt at `backend`.
    pub(crate) attempt: Option<Attempt>,
    pub(crate) failed: Vec<FailedAttempt>,
    pub(crate) candidates: Comparison,
    pub(crate) is_stream: bool,
    /// Status of the response; 0 if the client received none.
    pub(crate) status: u16,
    /// Error code of llmlb's own response, or the limit for which llmlb ended the request.
    pub(crate) code: Option<&'static str>,
    pub(crate) outcome: Option<Outcome>,
    pub(crate) usage: Option<TokenUsage>,
    /// True if the request has a usage record.
    pub(crate) is_recorded: bool,
    pub(crate) bytes: u64,
    pub(crate) started: Instant,
    pub(crate) queue_ms: u64,
    pub(crate) first_byte: Option<Instant>,
    pub(crate) ended: Instant,
    /// Trace of the request; `None` if it is not recorded.
    #[cfg_attr(
        not(feature = "otlp"),
        expect(dead_code, reason = "only the exporter of traces reads it")
    )]
    pub(crate) trace: Option<SpanContext>,
}

impl FinishedRequest {
    /// True if the client did not get a backend's complete response, or got an error.
    pub(crate) fn is_failed(&self) -> bool {
        self.status >= 400 || !matches!(self.outcome, None | Some(Outcome::Complete))
    }

    /// True if this is the request's `x-request-id` or the id of its usage record.
    pub(crate) fn has_id(&self, id: &str) -> bool {
        let is_record_id = || Uuid::try_parse(id).is_ok_and(|id| id == self.record_id);
        self.id.as_bytes() == id.as_bytes() || is_record_id()
    }

    /// Arrival of the request, in milliseconds since 1970.
    pub(crate) fn time_ms(&self) -> u64 {
        self.record_id.as_u64_pair().0 >> 16
    }

    /// Milliseconds from the start of the request.
    pub(crate) fn ms_until(&self, end: Instant) -> u64 {
        let passed = end.saturating_duration_since(self.started);
        u64::try_from(passed.as_millis()).unwrap_or(u64::MAX)
    }

    /// Shortens the texts that clients or backends chose.
    pub(super) fn shorten(&mut self) {
        for text in [&mut self.model, &mut self.served_model]
            .into_iter()
            .flatten()
        {
            shorten(text);
        }
        for attempt in &mut self.failed {
            shorten(&mut attempt.why);
        }
        if self.path.len() > MAX_TEXT {
            let mut path = std::mem::take(&mut self.path).into_string();
            shorten(&mut path);
            self.path = path.into_boxed_str();
        }
    }
}

/// Shortens a text to [`MAX_TEXT`] bytes, and frees the memory of the rest.
fn shorten(text: &mut String) {
    if text.len() > MAX_TEXT {
        let end = (0..=MAX_TEXT).rev().find(|end| text.is_char_boundary(*end));
        text.truncate(end.unwrap_or_default());
    }
    if text.capacity() > 2 * MAX_TEXT {
        text.shrink_to_fit();
    }
}
