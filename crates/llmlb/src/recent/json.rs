//! Explanations of finished requests as JSON, for `llmlb explain` and the dashboard.

use std::time::{Duration, SystemTime};

use serde_json::{Value, json};

use super::finished::FinishedRequest;
use crate::balance::{ComparedBackend, Table};
use crate::lock::rfc3339;
use crate::meter::record::Outcome;
use crate::meter::usage::TokenUsage;
use crate::text;

/// Maximum number of characters of a text from a client or a backend.
const MAX_TEXT: usize = 200;

impl FinishedRequest {
    /// Returns everything that is known of the request. Fields that a usage record has too have the same names.
    pub(super) fn explanation(&self, table: &Table) -> Value {
        let key = self.key.as_deref();
        let usage = self.usage.unwrap_or_default();
        let attempt = self.attempt.as_ref();
        let ms = |at| self.ms_until(at);
        json!({
            "id": self.record_id.to_string(),
            "request_id": self.id.to_str().unwrap_or_default(),
            "time": self.time(),
            "method": self.method.as_str(),
            "path": shown(&self.path),
            "api": self.api.name(),
            "stream": self.is_stream,
            "key": key.map(|key| &*key.name),
            "team": key.and_then(|key| key.team.as_deref()),
            "model": self.model.as_deref().map(shown),
            "served_model": self.served_model.as_deref().map(shown),
            "backend": self.backend.as_ref().map(|backend| shown(&backend.name)),
            "why": attempt.map(|attempt| attempt.reason.name()),
            "candidates": self.candidates.total,
            "compared": self.candidates.shown().map(|one| compared(one, table)).collect::<Vec<_>>(),
            "queue_ms": self.queue_ms,
            "attempts": self.failed.iter().map(|failed| json!({
                "backend": shown(&failed.backend.name),
                "error": shown(&failed.why),
                "why": failed.times.reason.name(),
                "at_ms": ms(failed.times.started),
                "head_ms": failed.times.head.map(ms),
                "ms": failed.ms(),
            })).collect::<Vec<_>>(),
            "sent_ms": attempt.map(|attempt| ms(attempt.started)),
            "head_ms": attempt.and_then(|attempt| attempt.head).map(ms),
            "first_byte_ms": self.first_byte.map(ms),
            "ms": ms(self.ended),
            "status": (self.status > 0).then_some(self.status),
            "code": self.code,
            "outcome": self.outcome.map(Outcome::name),
            "prompt_tokens": usage.prompt,
            "completion_tokens": usage.completion,
            "cached_tokens": usage.cached,
            "reasoning_tokens": usage.reasoning,
            "tokens": usage.total,
            "tokens_from": self.usage.map(|usage: TokenUsage| usage.source.name()),
            "bytes": self.bytes,
            "recorded": self.is_recorded,
        })
    }

    /// Returns the request as one of the dashboard's errors.
    pub(super) fn error(&self) -> Value {
        let last = self.failed.last();
        let backend = self.backend.as_ref().or(last.map(|failed| &failed.backend));
        json!({
            "at": self.time(),
            "id": self.id.to_str().unwrap_or_default(),
            "status": self.status,
            "code": self.code,
            "model": self.model.as_deref().map(shown),
            "backend": backend.map(|backend| shown(&backend.name)),
            "key": self.key.as_ref().map(|key| &*key.name),
            "outcome": self.outcome.map(Outcome::name),
            "message": last.map(|failed| {
                shown(&format!("backend {}: {}", failed.backend.name, failed.why))
            }),
        })
    }

    fn time(&self) -> String {
        rfc3339(SystemTime::UNIX_EPOCH + Duration::from_millis(self.time_ms()))
    }
}

fn compared(one: &ComparedBackend, table: &Table) -> Value {
    let mut backends = table.backends.iter();
    let backend = backends.find(|backend| backend.id == one.id);
    json!({
        // A reload of the configuration may have removed the backend since.
        "backend": backend.map(|backend| shown(&backend.name)),
        "state": one.state.name(),
        "in_flight": one.in_flight,
        "latency_ms": (one.latency_us > 0).then(|| f64::from(one.latency_us) / 1000.0),
    })
}

/// Returns a text that is safe to print and not long.
fn shown(value: &str) -> String {
    text::plain(&text::shortened(value, MAX_TEXT)).into_owned()
}
