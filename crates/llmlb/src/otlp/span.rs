//! The spans of a request, encoded as fields of a `ScopeSpans`.

use std::time::Instant;

use super::protobuf::{Message, Value};
use crate::balance::Backend;
use crate::config::Kind;
use crate::endpoint::{self, Api};
use crate::meter::record::Outcome;
use crate::recent::{Attempt, FinishedRequest};
use crate::trace_context::{SpanContext, SpanId};

/// Field `spans` of a `ScopeSpans`.
const SPANS: u32 = 2;
const SERVER: u64 = 2;
const CLIENT: u64 = 3;
const STATUS_ERROR: u64 = 2;
/// Field `attributes` of a `Span`.
const ATTRIBUTES: u32 = 9;

/// Returns the spans of a request, encoded, and their number.
pub(super) fn encode(request: &FinishedRequest, context: &SpanContext) -> (Vec<u8>, u64) {
    let mut spans = Message::default();
    let mut count = 1;
    spans.message(SPANS, &server(request, context));
    for failed in &request.failed {
        let ended = (failed.ended, Some(&*failed.why));
        spans.message(
            SPANS,
            &client(request, context, &failed.backend, failed.times, ended),
        );
        count += 1;
    }
    if let (Some(attempt), Some(backend)) = (request.attempt, &request.backend) {
        let error = match request.outcome {
            Some(Outcome::Cut) => Some("cut"),
            Some(Outcome::Cancelled) => Some("cancelled"),
            _ => None,
        };
        let ended = (request.ended, error);
        spans.message(SPANS, &client(request, context, backend, attempt, ended));
        count += 1;
    }
    (spans.into_bytes(), count)
}

fn server(request: &FinishedRequest, context: &SpanContext) -> Message {
    let mut span = begin(
        request,
        context,
        (context.server_span(), context.parent),
        SERVER,
        (request.started, request.ended),
    );
    let path = endpoint::label(&request.path);
    let mut attribute = |key, value| span.attribute(ATTRIBUTES, key, value);
    attribute("gen_ai.provider.name", Value::Text("llmlb"));
    attribute("http.request.method", Value::Text(request.method.as_str()));
    attribute("url.path", Value::Text(&path));
    if request.status > 0 {
        attribute(
            "http.response.status_code",
            Value::Number(request.status.into()),
        );
    }
    usage(request, &mut attribute);
    attribute(
        "llmlb.request_id",
        Value::Text(request.id.to_str().unwrap_or_default()),
    );
    attribute("llmlb.queue_ms", Value::Number(request.queue_ms));
    attribute(
        "llmlb.candidates",
        Value::Number(request.candidates.total.into()),
    );
    if let Some(key) = &request.key {
        attribute("llmlb.key", Value::Text(&key.name));
    }
    if let Some(outcome) = request.outcome {
        attribute("llmlb.outcome", Value::Text(outcome.name()));
    }
    let status = request.status.to_string();
    let error = match (request.code, request.outcome) {
        (Some(code), _) => Some(code),
        (None, Some(outcome)) if outcome != Outcome::Complete => Some(outcome.name()),
        _ if request.status >= 500 => Some(&*status),
        _ => None,
    };
    end(span, error)
}

fn client(
    request: &FinishedRequest,
    context: &SpanContext,
    backend: &Backend,
    attempt: Attempt,
    (ended, error): (Instant, Option<&str>),
) -> Message {
    let mut span = begin(
        request,
        context,
        (
            context.attempt_span(attempt.number),
            Some(context.server_span()),
        ),
        CLIENT,
        (attempt.started, ended),
    );
    let mut attribute = |key, value| span.attribute(ATTRIBUTES, key, value);
    let provider = backend.kind().map_or("openai", Kind::name);
    attribute("gen_ai.provider.name", Value::Text(provider));
    let authority = backend.url.authority();
    attribute("server.address", Value::Text(authority.host()));
    if let Some(port) = authority.port_u16() {
        attribute("server.port", Value::Number(port.into()));
    }
    attribute("llmlb.backend", Value::Text(&backend.name));
    attribute("llmlb.why", Value::Text(attempt.reason.name()));
    let is_last = request
        .attempt
        .is_some_and(|last| last.number == attempt.number);
    let status = match error.map(str::parse::<u16>) {
        Some(Ok(status)) => Some(status),
        _ => (is_last && request.status > 0).then_some(request.status),
    };
    if let Some(status) = status {
        attribute("http.response.status_code", Value::Number(status.into()));
    }
    if is_last {
        usage(request, &mut attribute);
    }
    let failed = status
        .filter(|status| *status >= 400)
        .map(|status| status.to_string());
    end(span, error.or(failed.as_deref()))
}

/// Begins a span with the fields and attributes that all spans of a request have.
fn begin(
    request: &FinishedRequest,
    context: &SpanContext,
    (id, parent): (SpanId, Option<SpanId>),
    kind: u64,
    (started, ended): (Instant, Instant),
) -> Message {
    let mut span = Message::default();
    span.bytes(1, &context.trace_id);
    span.bytes(2, &id);
    if let Some(parent) = parent {
        span.bytes(4, &parent);
    }
    let operation = operation(request.api);
    let word = operation.unwrap_or(request.method.as_str());
    match (&request.model, operation) {
        (Some(model), Some(_)) => span.text(5, &format!("{word} {model}")),
        _ => span.text(5, &format!("{word} {}", endpoint::label(&request.path))),
    }
    span.number(6, kind);
    span.fixed64(7, nanos(request, started));
    span.fixed64(8, nanos(request, ended));
    let mut attribute = |key, value| span.attribute(ATTRIBUTES, key, value);
    if let Some(operation) = operation {
        attribute("gen_ai.operation.name", Value::Text(operation));
        attribute("gen_ai.request.stream", Value::Bool(request.is_stream));
    }
    if let Some(model) = &request.model {
        attribute("gen_ai.request.model", Value::Text(model));
    }
    span
}

/// Adds the error, if there is one.
fn end(mut span: Message, error: Option<&str>) -> Message {
    if let Some(error) = error {
        span.attribute(ATTRIBUTES, "error.type", Value::Text(error));
        let mut status = Message::default();
        status.text(2, error);
        status.number(3, STATUS_ERROR);
        span.message(15, &status);
    }
    span
}

fn usage<'a>(request: &'a FinishedRequest, attribute: &mut impl FnMut(&'static str, Value<'a>)) {
    if let Some(model) = request.served_model.as_ref().or(request.model.as_ref())
        && request.backend.is_some()
    {
        attribute("gen_ai.response.model", Value::Text(model));
    }
    if let Some(first) = request.first_byte.filter(|_| request.is_stream) {
        let seconds = first
            .saturating_duration_since(request.started)
            .as_secs_f64();
        attribute("gen_ai.response.time_to_first_chunk", Value::Float(seconds));
    }
    let Some(usage) = request.usage.filter(|usage| usage.total > 0) else {
        return;
    };
    attribute("gen_ai.usage.input_tokens", Value::Number(usage.prompt));
    attribute(
        "gen_ai.usage.output_tokens",
        Value::Number(usage.completion),
    );
    if usage.cached > 0 {
        attribute(
            "gen_ai.usage.cache_read.input_tokens",
            Value::Number(usage.cached),
        );
    }
    if usage.reasoning > 0 {
        attribute(
            "gen_ai.usage.reasoning.output_tokens",
            Value::Number(usage.reasoning),
        );
    }
    attribute("llmlb.tokens_from", Value::Text(usage.source.name()));
}

/// Value of `gen_ai.operation.name`; `None` for APIs that the conventions do not name.
fn operation(api: Api) -> Option<&'static str> {
    match api {
        Api::Chat | Api::Responses | Api::Messages | Api::OllamaChat => Some("chat"),
        Api::Completions | Api::OllamaGenerate => Some("text_completion"),
        Api::Embeddings | Api::OllamaEmbed => Some("embeddings"),
        _ => None,
    }
}

/// Nanoseconds since 1970.
fn nanos(request: &FinishedRequest, at: Instant) -> u64 {
    let passed = at.saturating_duration_since(request.started).as_nanos();
    let passed = u64::try_from(passed).unwrap_or(u64::MAX);
    request
        .time_ms()
        .saturating_mul(1_000_000)
        .saturating_add(passed)
}
