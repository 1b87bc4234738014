//! A line of the access log as a JSON object. Fields that a usage record has too have the same names.

use std::time::Instant;

use super::MAX_TEXT;
use crate::meter::record::{ObjectWriter, Outcome, field};
use crate::request::guard::RequestGuard;
use crate::request::method;
use crate::text;

/// Appends the fields after the time of a request that ends at `now`, and the end of the line.
/// `object` is a buffer.
pub(super) fn line(text: &mut String, object: &mut String, guard: &RequestGuard, now: Instant) {
    object.clear();
    write(object, guard, now);
    if object.is_ascii() {
        text.push_str(object);
    } else {
        text.push_str(&text::escaped_json(object));
    }
}

fn write(object: &mut String, guard: &RequestGuard, now: Instant) {
    let (identity, route, metering) = (&guard.identity, &guard.route, &guard.metering);
    let key = guard.key.as_deref();
    let attempt = route.attempt.as_ref();
    let ms = |at| identity.ms_until(at);
    let mut line = ObjectWriter::resume(object);
    line.plain(field!("level"), "info");
    line.plain(field!("message"), "request");
    line.text(field!("id"), identity.id.to_str().ok());
    line.text(
        field!("method"),
        Some(shortened(identity.method.as_str(), method::MAX_SHOWN)),
    );
    line.text(field!("path"), Some(shortened(&identity.path, MAX_TEXT)));
    line.number(
        field!("status"),
        (guard.status > 0).then_some(guard.status.into()),
    );
    line.text(field!("code"), guard.code);
    line.text(field!("outcome"), guard.outcome.map(Outcome::name));
    line.text(field!("key"), key.map(|key| &*key.name));
    line.text(field!("model"), route.model.as_deref());
    line.text(
        field!("backend"),
        route.backend.as_ref().map(|backend| &*backend.name),
    );
    line.text(field!("why"), attempt.map(|attempt| attempt.reason.name()));
    line.number(field!("candidates"), Some(route.candidates.total.into()));
    line.list(field!("attempts"), &route.failed, |line, attempt| {
        line.text(field!("backend"), Some(&attempt.backend.name));
        line.text(field!("error"), Some(&attempt.why));
        line.plain(field!("why"), attempt.times.reason.name());
        line.number(field!("at_ms"), Some(ms(attempt.times.started)));
        line.number(field!("ms"), Some(attempt.ms()));
    });
    line.number(field!("queue_ms"), Some(route.queue.ms(now)));
    line.number(
        field!("sent_ms"),
        attempt.map(|attempt| ms(attempt.started)),
    );
    line.number(field!("first_byte_ms"), metering.first_byte.map(ms));
    line.number(field!("ms"), Some(ms(now)));
    let usage = metering.usage;
    line.number(field!("prompt_tokens"), usage.map(|usage| usage.prompt));
    line.number(
        field!("completion_tokens"),
        usage.map(|usage| usage.completion),
    );
    line.text(
        field!("tokens_from"),
        usage.map(|usage| usage.source.name()),
    );
    line.number(field!("bytes"), Some(metering.bytes));
    line.end();
    object.push('\n');
}

/// Returns the first `max` characters of a text.
fn shortened(text: &str, max: usize) -> &str {
    let end = text.char_indices().nth(max);
    end.map_or(text, |(end, _)| &text[..end])
}
