//! The access log: one line for each request when it ends. Lines are buffered and written together,
//! so that a request does not cost a system call of its own.

mod json;
mod text;

use std::fmt::{self, Debug, Write};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Instant, SystemTime};

use super::guard::RequestGuard;

/// Size of the buffer, in bytes, at which it is flushed at once.
const FLUSH_AT: usize = 16 << 10;

/// Maximum number of characters of a path, model name, error or request id in a log line; the rest
/// is omitted. Clients choose most of these texts and can make them very long, and the line buffer
/// never shrinks.
const MAX_TEXT: usize = 200;

/// Function that writes the text of whole log lines, for example to stderr.
pub(crate) type LogSink = Arc<dyn Fn(&[u8]) + Send + Sync>;

/// Form of the lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LineStyle {
    /// Text without the time, for terminals.
    Untimed,
    /// Text that begins with the time.
    Timed,
    /// One JSON object on each line.
    Json,
}

/// The access log of one worker.
pub(crate) struct AccessLog {
    to: Option<LogSink>,
    style: LineStyle,
    /// `log.requests`, which a reload of the configuration changes.
    is_on: Arc<AtomicBool>,
    buffer: Mutex<LineBuffer>,
}

/// Lines that are not flushed yet.
#[derive(Default)]
struct LineBuffer {
    text: String,
    /// The last second that was formatted, as Unix time and as text.
    second: (u64, String),
    /// The line that is written as JSON.
    object: String,
}

impl AccessLog {
    /// Returns an access log that writes its lines to `to`. With `None` no lines are logged.
    pub(crate) fn new(to: Option<LogSink>, style: LineStyle, is_on: Arc<AtomicBool>) -> Self {
        Self {
            to,
            style,
            is_on,
            buffer: Mutex::default(),
        }
    }

    pub(super) fn write(&self, guard: &RequestGuard, now: Instant) {
        if self.to.is_none() || !self.is_on.load(Ordering::Relaxed) {
            return;
        }
        let mut buffer = self.buffer.lock().unwrap_or_else(PoisonError::into_inner);
        let LineBuffer {
            text,
            second,
            object,
        } = &mut *buffer;
        match self.style {
            LineStyle::Untimed => text::line(text, guard, now),
            LineStyle::Timed => {
                write_time(text, second);
                text.push(' ');
                text::line(text, guard, now);
            }
            LineStyle::Json => {
                text.push_str("{\"time\":\"");
                write_time(text, second);
                text.push_str("\",");
                json::line(text, object, guard, now);
            }
        }
        if buffer.text.len() >= FLUSH_AT {
            self.flush_buffer(&mut buffer);
        }
    }

    /// Writes the buffered lines.
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

/// Appends the time. The date and the second are formatted once a second.
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
    let _ = write!(text, ".{:03}Z", now.subsec_millis());
}
