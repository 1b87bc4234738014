//! Access log: one line for each request when it ends. Lines are buffered and written together, so
//! that a request does not cost a system call of its own.

use std::fmt::{self, Debug, Write};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Instant, SystemTime};

use super::guard::{End, RequestGuard};
use super::method;
use crate::meter::record::Outcome;
use crate::meter::usage::UsageSource;

/// Size of the line buffer of the access log, in bytes, at which it is flushed at once.
const FLUSH_AT: usize = 16 << 10;

/// Maximum number of characters of a path, model name, error or request id in a log line; the rest
/// is omitted. Clients choose most of these texts and can make them very long, and the line buffer
/// never shrinks.
const MAX_TEXT: usize = 200;

/// Function that writes the text of whole log lines, for example to stderr.
pub(crate) type LogSink = Arc<dyn Fn(&[u8]) + Send + Sync>;

pub(crate) struct AccessLog {
    to: Option<LogSink>,
    /// True if each line begins with the time, as in a log file; lines on a terminal have none.
    timed: bool,
    /// Value of `log.requests`, which a reload of the configuration can change.
    is_on: Arc<AtomicBool>,
    buffer: Mutex<LineBuffer>,
}

/// Lines of the access log that are not written yet.
#[derive(Default)]
struct LineBuffer {
    text: String,
    /// Last second that was formatted, as Unix time and as text, so that most lines copy the text.
    second: (u64, String),
}

impl AccessLog {
    /// Returns an access log that writes its lines to `to`, or logs nothing if `to` is `None`.
    /// `timed` is true if each line begins with the time.
    pub(crate) fn new(to: Option<LogSink>, timed: bool, is_on: Arc<AtomicBool>) -> Self {
        Self {
            to,
            timed,
            is_on,
            buffer: Mutex::default(),
        }
    }

    pub(super) fn write(&self, guard: &RequestGuard) {
        if self.to.is_none() || !self.is_on.load(Ordering::Relaxed) {
            return;
        }
        let mut buffer = self.buffer.lock().unwrap_or_else(PoisonError::into_inner);
        let LineBuffer { text, second } = &mut *buffer;
        if self.timed {
            write_time(text, second);
        }
        let _ = line(text, guard);
        if buffer.text.len() >= FLUSH_AT {
            self.flush_buffer(&mut buffer);
        }
    }

    /// Writes the buffered lines of the access log with one call.
    pub(crate) fn flush(&self) {
        let mut buffer = self.buffer.lock().unwrap_or_else(PoisonError::into_inner);
        if !buffer.text.is_empty() {
            self.flush_buffer(&mut buffer);
        }
    }

    fn flush_buffer(&self, buffer: &mut LineBuffer) {
        if let Some(to) = &self.to {
            to(buffer.text.as_bytes());
        }
        buffer.text.clear();
    }
}

impl Drop for AccessLog {
    fn drop(&mut self) {
        self.flush();
    }
}

impl Debug for AccessLog {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AccessLog").finish_non_exhaustive()
    }
}

fn line(text: &mut String, guard: &RequestGuard) -> fmt::Result {
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
    for attempt in &route.failed {
        push_all(text, [" failed=", &attempt.backend.name, " error="]);
        plain(text, &attempt.why, MAX_TEXT)?;
    }
    number(text, " ms=", identity.ms_until(Instant::now()));
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

/// Appends a number to a log line, with a third of the instructions of `write!`.
fn number(text: &mut String, before: &str, value: impl itoa::Integer) {
    push_all(text, [before, itoa::Buffer::new().format(value)]);
}

fn push_all<const N: usize>(text: &mut String, parts: [&str; N]) {
    for part in parts {
        text.push_str(part);
    }
}

/// Appends at most `max` characters of a text that a client chose to a log line. The text is quoted
/// if it could be mistaken for a line or a field of the log.
fn plain(text: &mut String, value: &str, max: usize) -> fmt::Result {
    // Fast path: a text of at most `max` bytes has at most `max` characters, so they need not be
    // counted.
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

/// Appends the time to a log line. The date and the second are formatted only once a second.
fn write_time(text: &mut String, (last, written): &mut (u64, String)) {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    let now = now.unwrap_or_default();
    if *last != now.as_secs() || written.is_empty() {
        *last = now.as_secs();
        let seconds = i64::try_from(now.as_secs()).unwrap_or_default();
        let time = jiff::Timestamp::from_second(seconds).unwrap_or_default();
        let time = time.to_string();
        time.trim_end_matches('Z').clone_into(written);
    }
    text.push_str(written);
    let _ = write!(text, ".{:03}Z ", now.subsec_millis());
}
