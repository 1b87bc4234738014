//! Collects usage, errors and the end of a stream from its events.

use std::sync::LazyLock;

use memchr::memmem::{self, Finder as Search};

use super::super::estimate::StreamEstimate;
use super::super::json::{Facts, Finder, is_error_value};
use super::super::usage::TokenCounts;
use super::delta_text;
use super::lines::lines;
use super::usage_event::is_usage_event;
use crate::endpoint::Api;

/// Number of bytes that are kept of the last event. They suffice to recognize an error or a finish reason.
const KEPT: usize = 1024;

/// Usage, errors and end of a stream, as far as its events have arrived. The usage record of the
/// request is written from them.
#[derive(Debug)]
pub(crate) struct StreamSummary {
    api: Api,
    pub(crate) counts: TokenCounts,
    /// True if the end mark of the stream was read, such as `[DONE]` or `message_stop`.
    pub(crate) saw_end: bool,
    saw_error: bool,
    /// True if an event with usage and empty choices was read. Backends send that event after all
    /// generated text, so the stream is not truncated.
    saw_usage_event: bool,
    pub(crate) estimate: StreamEstimate,
    /// End of the last event's data, at most [`KEPT`] bytes, from which an error or a finish reason
    /// at the end of the stream is recognized.
    last: Vec<u8>,
}

impl StreamSummary {
    pub(in super::super) fn new(api: Api) -> Self {
        Self {
            api,
            counts: TokenCounts::default(),
            saw_end: false,
            saw_error: false,
            saw_usage_event: false,
            estimate: StreamEstimate::default(),
            last: Vec::new(),
        }
    }

    pub(in super::super) fn api(&self) -> Api {
        self.api
    }

    /// True if the backend reported an error within the stream, so that the response does not count
    /// as complete.
    pub(crate) fn saw_error(&self) -> bool {
        // While the stream arrived, only events whose first field is `error` were recognized as
        // errors. Parse the last event, so that an `error` field at any position is found.
        self.saw_error || facts(&self.last).is_error
    }

    /// True if the backend sent a finish reason or the end mark. A usage event may still follow.
    pub(crate) fn saw_finish(&self) -> bool {
        let reasons = ["\"finish_reason\"", "\"stop_reason\"", "\"done_reason\""];
        self.saw_end
            || self.saw_usage_event
            || reasons.iter().any(|name| {
                let at = memmem::rfind(&self.last, name.as_bytes());
                at.is_some_and(|at| value_after(&self.last, at + name.len()).starts_with(b"\""))
            })
    }

    /// Reads a line of an event for its usage and text. Returns its data if it is a `data:` line
    /// with an object.
    pub(super) fn line<'a>(&mut self, line: &'a [u8]) -> Option<&'a [u8]> {
        match line.first()? {
            b'd' => {
                let data = line_data(line)?;
                match data.first()? {
                    b'{' => {
                        self.object(data);
                        return Some(data);
                    }
                    b'[' => self.saw_end |= data.starts_with(b"[DONE]"),
                    _ => {}
                }
            }
            b'e' => {
                let mut facts = Facts::default();
                facts.event(line.strip_prefix(b"event:")?.trim_ascii());
                self.note(&facts);
            }
            // Skip a byte order mark at the start of the stream, which is not part of the first
            // line.
            0xEF => return self.line(line.strip_prefix(BOM)?),
            _ => {}
        }
        None
    }

    pub(in super::super) fn object(&mut self, data: &[u8]) {
        if let Some(represents) = self.estimate.event() {
            self.estimate
                .text(delta_text::parts(self.api, data), represents);
        }
        if let Some(error) = data.strip_prefix(b"{\"error\"") {
            self.saw_error |= is_error_value(value_after(error, 0));
        }
    }

    /// Keeps the last bytes of an event's data in place of those of the event before it, so that
    /// the last event of the stream can be parsed for an error or a finish reason.
    pub(in super::super) fn remember(&mut self, data: &[u8]) {
        self.last.clear();
        let from = data.len().saturating_sub(KEPT);
        self.last.extend_from_slice(&data[from..]);
    }

    /// Reads the usage of an event that contains `"usage"`. Returns true if it is a usage event
    /// (`usage` and empty `choices`), which may have to be hidden.
    pub(super) fn usage(&mut self, event: &[u8]) -> bool {
        let finder = read(event);
        let facts = finder.facts();
        self.note(facts);
        let is_usage = finder.is_over() && is_usage_event(&finder);
        self.saw_usage_event |= is_usage;
        is_usage
    }

    /// Merges the usage, errors and end that an event reports into those of the stream.
    pub(in super::super) fn note(&mut self, facts: &Facts) {
        self.counts.merge(&facts.counts);
        self.saw_end |= facts.is_last;
        self.saw_error |= facts.is_error;
    }
}

const BOM: &[u8] = b"\xEF\xBB\xBF";

/// Returns the value of a `data:` line of an event.
fn line_data(line: &[u8]) -> Option<&[u8]> {
    Some(line.strip_prefix(b"data:")?.trim_ascii_start())
}

/// Returns the JSON text after the colon that follows a field name, from whose beginning the kind
/// of value is recognized; `at` is the end of the name.
pub(super) fn value_after(text: &[u8], at: usize) -> &[u8] {
    let rest = text[at..].trim_ascii_start();
    rest.strip_prefix(b":")
        .unwrap_or_default()
        .trim_ascii_start()
}

/// Reads the data of an event, which may have several `data:` lines that form one JSON object.
pub(super) fn read(event: &[u8]) -> Finder {
    let event = event.strip_prefix(BOM).unwrap_or(event);
    let mut finder = Finder::default();
    lines(event)
        .filter_map(line_data)
        .for_each(|data| finder.read(data));
    finder
}

fn facts(object: &[u8]) -> Facts {
    let mut finder = Finder::default();
    finder.read(object);
    *finder.facts()
}

/// Returns the offset of the next `"usage"` after `from` whose value is not `null`, so that the
/// many events with `"usage":null` are not parsed. A `null` on a later line is no such value: it
/// may belong to another event.
pub(super) fn next_usage(text: &[u8], mut from: usize) -> Option<usize> {
    const NAME: &str = "\"usage\"";
    static USAGE: LazyLock<Search<'static>> = LazyLock::new(|| Search::new(NAME));
    loop {
        let at = from + USAGE.find(&text[from..])?;
        from = at + NAME.len();
        let line = lines(&text[from..]).next().unwrap_or_default();
        if !value_after(line, 0).starts_with(b"null") {
            return Some(at);
        }
    }
}
