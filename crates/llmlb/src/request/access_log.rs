//! The access log: one line for each request when it ends. Lines are buffered and written together,
//! so that a request does not cost a system call of its own.

use std::fmt::{self, Debug, Write};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Instant, SystemTime};

use super::guard::{End, RequestGuard};
use super::method;
use crate::meter::record::Outcome;
use crate::meter::usage::UsageSource;

/// Size of the buffer, in bytes, at which it is flushed at once.
const ENOUGH: usize = 16 << 10;

/// Maximum number of characters of a text that a client chose, as in a record. The buffer keeps its
/// memory, and such texts can be megabytes long.
const LONGEST: usize = 200;

/// Receives the text of whole lines.
pub(crate) type LogSink = Arc<dyn Fn(&[u8]) + Send + Sync>;

/// The access log of one worker.
pub(crate) struct AccessLog {
    to: Option<LogSink>,
    /// Each line begins with the time.
    timed: bool,
    gathered: Mutex<Gathered>,
}

#[derive(Default)]
struct Gathered {
    text: String,
    /// The second that was written last, and how.
    second: (u64, String),
}

impl AccessLog {
    /// `None`: nobody wants to know.
    pub(crate) fn new(to: Option<LogSink>, timed: bool) -> Self {
        Self {
            to,
            timed,
            gathered: Mutex::default(),
        }
    }

    pub(super) fn write(&self, guard: &RequestGuard) {
        if self.to.is_none() {
            return;
        }
        let mut gathered = self.gathered.lock().unwrap_or_else(PoisonError::into_inner);
        let Gathered { text, second } = &mut *gathered;
        if self.timed {
            write_time(text, second);
        }
        // Writing into memory cannot fail.
        let _ = line(text, guard);
        if gathered.text.len() >= ENOUGH {
            self.hand_on(&mut gathered);
        }
    }

    /// Hands on what has been gathered.
    pub(crate) fn flush(&self) {
        let mut gathered = self.gathered.lock().unwrap_or_else(PoisonError::into_inner);
        if !gathered.text.is_empty() {
            self.hand_on(&mut gathered);
        }
    }

    fn hand_on(&self, gathered: &mut Gathered) {
        if let Some(to) = &self.to {
            to(gathered.text.as_bytes());
        }
        gathered.text.clear();
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
    plain(text, identity.method.as_str(), method::SHOWN)?;
    text.push(' ');
    plain(text, &identity.path, LONGEST)?;
    match guard.status {
        0 => text.push_str(" -"),
        status => number(text, " ", status),
    }
    match (guard.outcome, guard.code) {
        (_, Some(code)) => push_all(text, [" ", code]),
        (Some(Outcome::Cancelled), _) => text.push_str(" the client left"),
        (Some(Outcome::Cut), _) if guard.end == End::Left => {
            text.push_str(" cut at the end of the server");
        }
        (Some(Outcome::Cut), _) => text.push_str(" cut by the backend"),
        _ => {}
    }
    if let Some(model) = &route.model {
        text.push_str(" model=");
        plain(text, model, LONGEST)?;
    }
    if let Some(backend) = &route.backend {
        push_all(text, [" backend=", &backend.name]);
    }
    for attempt in &route.failed {
        push_all(text, [" failed=", &attempt.backend.name, " error="]);
        plain(text, &attempt.why, LONGEST)?;
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
    plain(text, identity.id.to_str().unwrap_or("?"), LONGEST)?;
    text.push('\n');
    Ok(())
}

/// A third of the instructions that `write!` takes.
fn number(text: &mut String, before: &str, value: impl itoa::Integer) {
    push_all(text, [before, itoa::Buffer::new().format(value)]);
}

fn push_all<const N: usize>(text: &mut String, parts: [&str; N]) {
    for part in parts {
        text.push_str(part);
    }
}

/// What a client says must not look like lines, or fields, of ours. At most `most` characters of it
/// are written.
fn plain(text: &mut String, said: &str, most: usize) -> fmt::Result {
    // There are at most as many characters as bytes.
    let end = if said.len() > most {
        said.char_indices().nth(most)
    } else {
        None
    };
    let said = end.map_or(said, |(end, _)| &said[..end]);
    if said
        .bytes()
        .all(|byte| byte.is_ascii_graphic() && byte != b'"')
    {
        text.push_str(said);
        Ok(())
    } else {
        write!(text, "{said:?}")
    }
}

/// The date and the second are written anew once a second.
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
