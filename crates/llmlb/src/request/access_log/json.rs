//! A line of the access log as a JSON object. Fields that a usage record has too have the same names.

use std::time::Instant;

use super::MAX_TEXT;
use crate::meter::record::{ObjectWriter, Outcome};
use crate::request::guard::RequestGuard;
use crate::request::method;
use crate::text;

/// Appends the fields after the time of a request that ends at `now`, and the end of the line.
/// `object` is a buffer.
pub(super) fn line(text: &mut String, object: &mut Vec<u8>, guard: &RequestGuard, now: Instant) {
    object.clear();
    write(object, guard, now);
    // Every field is a `str` or ASCII, so the line is valid UTF-8.
    let line = str::from_utf8(object).unwrap_or_default();
    if line.is_ascii() {
        text.push_str(line);
    } else {
        text.push_str(&text::escaped_json(line));
    }
}

fn write(bytes: &mut Vec<u8>, guard: &RequestGuard, now: Instant) {
    let (identity, route, metering) = (&guard.identity, &guard.route, &guard.metering);
    let key = guard.key.as_deref();
    let attempt = route.attempt.as_ref();
    let ms = |at| identity.ms_until(at);
    let mut line = ObjectWriter::resume(bytes);
    line.plain("level", "info");
    line.plain("message", "request");
    line.text("id", identity.id.to_str().ok());
    line.text(
        "method",
        Some(shortened(identity.method.as_str(), method::MAX_SHOWN)),
    );
    line.text("path", Some(shortened(&identity.path, MAX_TEXT)));
    line.number("status", (guard.status > 0).then_some(guard.status.into()));
    line.text("code", guard.code);
    line.text("outcome", guard.outcome.map(Outcome::name));
    line.text("key", key.map(|key| &*key.name));
    line.text("model", route.model.as_deref());
    line.text(
        "backend",
        route.backend.as_ref().map(|backend| &*backend.name),
    );
    line.text("why", attempt.map(|attempt| attempt.reason.name()));
    line.number("candidates", Some(route.candidates.total.into()));
    line.list("attempts", &route.failed, |line, attempt| {
        line.text("backend", Some(&attempt.backend.name));
        line.text("error", Some(&attempt.why));
        line.plain("why", attempt.times.reason.name());
        line.number("at_ms", Some(ms(attempt.times.started)));
        line.number("ms", Some(attempt.ms()));
    });
    line.number("queue_ms", Some(route.queue.ms(now)));
    line.number("sent_ms", attempt.map(|attempt| ms(attempt.started)));
    line.number("first_byte_ms", metering.first_byte.map(ms));
    line.number("ms", Some(ms(now)));
    let usage = metering.usage;
    line.number("prompt_tokens", usage.map(|usage| usage.prompt));
    line.number("completion_tokens", usage.map(|usage| usage.completion));
    line.text("tokens_from", usage.map(|usage| usage.source.name()));
    line.number("bytes", Some(metering.bytes));
    line.end();
    bytes.push(b'\n');
}

/// Returns the first `max` characters of a text.
fn shortened(text: &str, max: usize) -> &str {
    let end = text.char_indices().nth(max);
    end.map_or(text, |(end, _)| &text[..end])
}
