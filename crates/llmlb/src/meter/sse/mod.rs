//! A stream of events, watched as it passes.
//!
//! Bytes go on as they came, at once. Only events in which `"usage"` stands are read. If the
//! client did not ask for usage, the event that has nothing else is taken out: no choices, and a
//! `usage` ([`usage_event`]). For that, and only then, the beginning of an event is held back whose end has not
//! come, and only as long as it can still become one.

mod delta_text;
mod lines;
mod partial_event;
mod summary;
#[cfg(test)]
mod tests;
mod usage_event;

use bytes::Bytes;

use crate::endpoint::Api;
pub(crate) use lines::may_begin;
use lines::{is_an_event, last_end, lines};
use partial_event::PartialEvent;
pub(crate) use summary::StreamSummary;
use usage_event::Cut;

/// An event that is longer has more in it than usage, and is never taken out.
const LONGEST_HIDDEN: usize = 16 * 1024;

/// Watches one stream.
#[derive(Debug)]
pub(crate) struct Sse {
    is_hiding: bool,
    summary: StreamSummary,
    /// The event whose end has not come.
    open: PartialEvent,
    /// The last event ended with `\r`, of which the `\n` may follow; whether it was taken out.
    after_return: Option<bool>,
}

/// What becomes of a frame.
#[derive(Debug, Default)]
struct Passing {
    /// What was held back, and goes before it.
    front: Vec<u8>,
    /// What is taken out of it, in its order.
    cuts: Vec<Cut>,
}

impl Sse {
    /// `is_hiding`: whether usage that comes alone is taken out.
    pub(crate) fn new(api: Api, is_hiding: bool) -> Self {
        Self {
            is_hiding,
            summary: StreamSummary::new(api),
            open: PartialEvent::default(),
            after_return: None,
        }
    }

    /// Whether usage that comes alone is taken out.
    pub(crate) fn is_hiding(&self) -> bool {
        self.is_hiding
    }

    /// What is known so far.
    pub(crate) fn summary(&self) -> &StreamSummary {
        &self.summary
    }

    /// Looks at a frame. What it returns goes on to the client; it may be empty.
    pub(crate) fn pass(&mut self, data: Bytes) -> Bytes {
        if data.is_empty() {
            return data;
        }
        let mut passing = Passing::default();
        let mut at = 0;
        if let Some(was_hidden) = self.after_return.take()
            && data[0] == b'\n'
        {
            at = 1;
            if was_hidden {
                passing.cuts.push(Cut::out(0..1));
            }
        }
        if self.open.is_there() {
            let Some(end) = self.open.end_in(&data) else {
                return self.grow(data);
            };
            at = end;
            self.close(&data[..end], &mut passing);
        }
        let whole = at + last_end(&data[at..]);
        self.events(&data[at..whole], at, &mut passing);
        let whole = whole + comments(&data[whole..]);
        if whole < data.len() {
            let rest = &data[whole..];
            self.open.begin(rest, self.is_hiding);
            self.summary.saw_end |= self.open.is_end_mark();
            if self.open.is_held() {
                passing.cuts.push(Cut::out(whole..data.len()));
            }
        } else if data.ends_with(b"\r") {
            let last = passing.cuts.last();
            self.after_return = Some(last.is_some_and(|last| last.place.end == whole));
        }
        passing.out_of(data)
    }

    /// The stream is over. What was held back goes on, if it is not to be taken out.
    pub(crate) fn finish(&mut self) -> Bytes {
        if !self.open.is_there() {
            return Bytes::new();
        }
        let mut passing = Passing::default();
        // As if its last line and itself were ended.
        self.close(b"\n\n", &mut passing);
        passing.front.into()
    }

    /// The event that is open goes on in all of this frame.
    fn grow(&mut self, data: Bytes) -> Bytes {
        let front = self.open.grow(&data);
        self.summary.saw_end |= self.open.is_end_mark();
        if self.open.is_held() {
            return Bytes::new();
        }
        let cuts = Vec::new();
        Passing { front, cuts }.out_of(data)
    }

    /// The event that is open ends with this.
    fn close(&mut self, end: &[u8], passing: &mut Passing) {
        let held = self.open.is_held().then(|| self.open.length());
        match self.open.close(end) {
            partial_event::Closed::Huge(finder) => self.summary.note(finder.facts()),
            partial_event::Closed::Event(mut event) => {
                let mut within = Passing::default();
                self.events(&event, 0, &mut within);
                let Some(length) = held else { return };
                event.truncate(length);
                let mut front = Passing::default();
                for cut in within.cuts {
                    let (before, after) = cut.split(length);
                    front.cuts.extend(before);
                    passing.cuts.extend(after);
                }
                passing.front = front.out_of(event.into()).into();
            }
        }
    }

    /// Reads whole events, which stand at `base` in their frame.
    fn events(&mut self, text: &[u8], base: usize, passing: &mut Passing) {
        let mut usage = summary::next_usage(text, 0);
        let mut begin = 0;
        let mut last = None;
        let mut lines = lines(text);
        while let Some(line) = lines.next() {
            if !line.is_empty() {
                last = self.summary.line(line).or(last);
                continue;
            }
            let end = text.len() - lines.left();
            if usage.is_some_and(|at| at < end) {
                let is_alone = self.summary.usage(&text[begin..end]);
                let is_short = end - begin <= LONGEST_HIDDEN;
                if is_alone && self.is_hiding && is_short && is_an_event(&text[begin..end]) {
                    self.hide(&text[begin..end], base + begin, passing);
                }
                usage = summary::next_usage(text, end);
            }
            begin = end;
        }
        if let Some(data) = last {
            self.summary.remember(data);
        }
    }

    /// Takes out an event with usage alone, or its usage if there is more in it.
    fn hide(&self, event: &[u8], base: usize, passing: &mut Passing) {
        if let Some(cuts) = usage_event::without_usage(self.summary.api(), event) {
            passing.cuts.extend(cuts.map(|cut| Cut {
                place: base + cut.place.start..base + cut.place.end,
                ..cut
            }));
        } else {
            let place = base + comments(event)..base + event.len();
            passing.cuts.push(Cut::out(place));
        }
    }
}

/// How long the lines are that begin an event and are comments. They are for nobody to keep: some
/// keep the connection alive, and come without an empty line.
fn comments(event: &[u8]) -> usize {
    let mut length = 0;
    while event[length..].starts_with(b":")
        && let Some(end) = memchr::memchr2(b'\n', b'\r', &event[length..])
    {
        length += match &event[length + end..] {
            [b'\r', b'\n', ..] => end + 2,
            // Whether a line feed follows is not known.
            [b'\r'] => break,
            _ => end + 1,
        };
    }
    length
}

impl Passing {
    /// What is left of a frame. It is copied only if more than one piece is.
    fn out_of(self, data: Bytes) -> Bytes {
        if self.front.is_empty() && self.cuts.is_empty() {
            return data;
        }
        let mut pieces: Vec<&[u8]> = Vec::with_capacity(2 * self.cuts.len() + 2);
        pieces.push(&self.front);
        let mut at = 0;
        for cut in &self.cuts {
            pieces.extend([&data[at..cut.place.start], cut.with.as_bytes()]);
            at = cut.place.end;
        }
        pieces.push(&data[at..]);
        pieces.retain(|piece| !piece.is_empty());
        let is_new = !self.front.is_empty() || self.cuts.iter().any(|cut| !cut.with.is_empty());
        match &*pieces {
            [] => Bytes::new(),
            [piece] if !is_new => data.slice_ref(piece),
            pieces => pieces.concat().into(),
        }
    }
}
