//! A line of the access log as text, for people and for `grep`.

use std::fmt::{self, Write};
use std::time::Instant;

use super::MAX_TEXT;
use crate::meter::record::Outcome;
use crate::meter::usage::UsageSource;
use crate::request::guard::{End, RequestGuard};
use crate::request::method;

/// Appends the line of a request, which ends at `now`.
pub(super) fn line(text: &mut String, guard: &RequestGuard, now: Instant) {
    // The line is written into memory, which cannot fail.
    let _ = write_line(text, guard, now);
}

fn write_line(text: &mut String, guard: &RequestGuard, now: Instant) -> fmt::Result {
    let (identity, route, metering) = (&guard.identity, &guard.route, &guard.metering);
    text.push_str("llmlb: ");
    plain(text, identity.method.as_str(), method::MAX_SHOWN)?;
    text.push(' ');
    plain(text, &identity.path, MAX_TEXT)?;
    match guard.status {
        0 => text.push_str(" -"),
        status => number(text, " ", status),
    }
    match (guard.outcome, guard.code) {
        (_, Some(code)) => push_all(text, [" ", code]),
        (Some(Outcome::Cancelled), _) => text.push_str(" client disconnected"),
        (Some(Outcome::Cut), _) if guard.end == End::Unfinished => {
            text.push_str(" cut by the shutdown");
        }
        (Some(Outcome::Cut), _) => text.push_str(" cut by the backend"),
        _ => {}
    }
    if let Some(key) = &guard.key {
        push_all(text, [" key=", &key.name]);
    }
    if let Some(model) = &route.model {
        text.push_str(" model=");
        plain(text, model, MAX_TEXT)?;
    }
    if let Some(backend) = &route.backend {
        push_all(text, [" backend=", &backend.name]);
    }
    if let Some(attempt) = &route.attempt {
        push_all(text, [" why=", attempt.reason.name()]);
    }
    if route.candidates.total > 0 {
        number(text, " candidates=", route.candidates.total);
    }
    for attempt in &route.failed {
        push_all(text, [" failed=", &attempt.backend.name, " error="]);
        plain(text, &attempt.why, MAX_TEXT)?;
        number(text, " failed_ms=", attempt.ms());
    }
    positive(text, " queue_ms=", route.queue.ms(now));
    if let Some(attempt) = &route.attempt {
        positive(text, " sent_ms=", identity.ms_until(attempt.started));
    }
    number(text, " ms=", identity.ms_until(now));
    if let Some(first_byte) = metering.first_byte {
        number(text, " first_byte_ms=", identity.ms_until(first_byte));
    }
    if let Some(usage) = metering.usage.filter(|usage| usage.total > 0) {
        let is_estimated = usage.source == UsageSource::Estimated;
        let name = if is_estimated {
            " tokens=~"
        } else {
            " tokens="
        };
        number(text, name, usage.prompt);
        number(text, "+", usage.completion);
    }
    number(text, " bytes=", metering.bytes);
    text.push_str(" id=");
    plain(text, identity.id.to_str().unwrap_or("?"), MAX_TEXT)?;
    text.push('\n');
    Ok(())
}

/// Appends a number that is not 0.
fn positive(text: &mut String, before: &str, value: u64) {
    if value > 0 {
        number(text, before, value);
    }
}

/// Appends a number, with a third of the instructions of `write!`.
fn number(text: &mut String, before: &str, value: impl itoa::Integer) {
    push_all(text, [before, itoa::Buffer::new().format(value)]);
}

fn push_all<const N: usize>(text: &mut String, parts: [&str; N]) {
    for part in parts {
        text.push_str(part);
    }
}

/// Appends at most `max` characters of a text that a client chose. The text is quoted if it could be
/// mistaken for a line or a field of the log.
fn plain(text: &mut String, value: &str, max: usize) -> fmt::Result {
    // Fast path: a text of at most `max` bytes has at most `max` characters.
    let end = if value.len() > max {
        value.char_indices().nth(max)
    } else {
        None
    };
    let value = end.map_or(value, |(end, _)| &value[..end]);
    if value
        .bytes()
        .all(|byte| byte.is_ascii_graphic() && byte != b'"')
    {
        text.push_str(value);
        Ok(())
    } else {
        write!(text, "{value:?}")
    }
}
