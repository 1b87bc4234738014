//! What the events of a stream say, taken together.

use std::sync::LazyLock;

use memchr::memmem::{self, Finder as Search};

use super::super::estimate::Streamed;
use super::super::json::{Facts, Finder, is_an_error};
use super::super::usage::Counts;
use super::delta_text;
use super::lines::lines;
use super::usage_event::is_alone;
use crate::endpoint::Api;

/// How much is kept of the last event: enough to see that it is an error or the end.
const KEPT: usize = 1024;

/// What is known of a stream.
#[derive(Debug)]
pub(crate) struct StreamSummary {
    api: Api,
    pub(crate) counts: Counts,
    /// The mark after which nothing comes was seen.
    pub(crate) saw_end: bool,
    saw_error: bool,
    /// Usage came alone, as it does after the last word.
    saw_usage_alone: bool,
    pub(crate) streamed: Streamed,
    /// The end of the last event's data.
    last: Vec<u8>,
}

impl StreamSummary {
    pub(in super::super) fn new(api: Api) -> Self {
        Self {
            api,
            counts: Counts::default(),
            saw_end: false,
            saw_error: false,
            saw_usage_alone: false,
            streamed: Streamed::default(),
            last: Vec::new(),
        }
    }

    pub(in super::super) fn api(&self) -> Api {
        self.api
    }

    /// Whether an error was told in the midst of the answer.
    pub(crate) fn saw_error(&self) -> bool {
        // Most errors begin with that word; of the last event one may know more.
        self.saw_error || facts(&self.last).is_error
    }

    /// Whether a reason was told for which the answer ends here. Usage may follow it.
    pub(crate) fn saw_finish(&self) -> bool {
        let reasons = ["\"finish_reason\"", "\"stop_reason\"", "\"done_reason\""];
        self.saw_end
            || self.saw_usage_alone
            || reasons.iter().any(|name| {
                let at = memmem::rfind(&self.last, name.as_bytes());
                at.is_some_and(|at| value_after(&self.last, at + name.len()).starts_with(b"\""))
            })
    }

    /// A line of an event. If it is data: the data.
    pub(super) fn line<'a>(&mut self, line: &'a [u8]) -> Option<&'a [u8]> {
        match line.first()? {
            b'd' => {
                let data = data_of(line)?;
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
            // A byte order mark, which only the first line can have.
            0xEF => return self.line(line.strip_prefix(BOM)?),
            _ => {}
        }
        None
    }

    /// The data of an event that is an object.
    pub(in super::super) fn object(&mut self, data: &[u8]) {
        if let Some(stands_for) = self.streamed.event() {
            self.streamed
                .text(delta_text::parts(self.api, data), stands_for);
        }
        if let Some(error) = data.strip_prefix(b"{\"error\"") {
            self.saw_error |= is_an_error(value_after(error, 0));
        }
    }

    /// This was the data of the last event so far.
    pub(in super::super) fn remember(&mut self, data: &[u8]) {
        self.last.clear();
        let from = data.len().saturating_sub(KEPT);
        self.last.extend_from_slice(&data[from..]);
    }

    /// An event with usage in it. Whether it is usage alone: has no choices, and a `usage`.
    pub(super) fn usage(&mut self, event: &[u8]) -> bool {
        let finder = read(event);
        let facts = finder.facts();
        self.note(facts);
        let is_alone = finder.is_over() && is_alone(&finder);
        self.saw_usage_alone |= is_alone;
        is_alone
    }

    /// What was found in an object.
    pub(in super::super) fn note(&mut self, facts: &Facts) {
        self.counts.merge(&facts.counts);
        self.saw_end |= facts.is_last;
        self.saw_error |= facts.is_error;
    }
}

const BOM: &[u8] = b"\xEF\xBB\xBF";

/// What stands behind `data:`.
fn data_of(line: &[u8]) -> Option<&[u8]> {
    Some(line.strip_prefix(b"data:")?.trim_ascii_start())
}

/// What follows a name and its colon.
pub(super) fn value_after(text: &[u8], at: usize) -> &[u8] {
    let rest = text[at..].trim_ascii_start();
    rest.strip_prefix(b":")
        .unwrap_or_default()
        .trim_ascii_start()
}

/// Reads the data of an event, which may be on several lines.
pub(super) fn read(event: &[u8]) -> Finder {
    let event = event.strip_prefix(BOM).unwrap_or(event);
    let mut finder = Finder::default();
    lines(event)
        .filter_map(data_of)
        .for_each(|data| finder.read(data));
    finder
}

fn facts(object: &[u8]) -> Facts {
    let mut finder = Finder::default();
    finder.read(object);
    *finder.facts()
}

/// The next place after `from` where usage is told; `"usage":null` tells none.
pub(super) fn next_usage(text: &[u8], mut from: usize) -> Option<usize> {
    const NAME: &str = "\"usage\"";
    static USAGE: LazyLock<Search<'static>> = LazyLock::new(|| Search::new(NAME));
    loop {
        let at = from + USAGE.find(&text[from..])?;
        from = at + NAME.len();
        if !value_after(text, from).starts_with(b"null") {
            return Some(at);
        }
    }
}
