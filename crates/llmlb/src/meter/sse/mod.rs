//! Reads an event stream (SSE) while it passes to the client, to find its usage and to hide usage
//! that the client did not request.
//!
//! Bytes are forwarded unchanged and at once. Only events that contain `"usage"` are parsed. If the client
//! did not request usage, the event with `usage` and empty `choices` is removed ([`usage_event`]). To
//! remove it, the beginning of an incomplete event is held back as long as the event can still become a
//! usage event.

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
use lines::{is_event, last_end, lines};
use partial_event::PartialEvent;
pub(crate) use summary::StreamSummary;
use usage_event::Splice;

/// Maximum length in bytes of a usage event that is hidden from the client. A longer event is
/// forwarded: it contains more than usage, and holding it back would delay the client.
const MAX_HIDDEN: usize = 16 * 1024;

/// Treatment of usage events (events with `usage` and empty `choices`): clients that did not
/// request them may fail on the empty list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum UsageEvents {
    /// The client requested usage, so usage events are forwarded.
    Forward,
    /// llmlb added `include_usage`, so usage events are removed from the stream.
    Hide,
}

#[derive(Debug)]
pub(crate) struct Sse {
    usage_events: UsageEvents,
    summary: StreamSummary,
    /// Event whose end is in a later chunk.
    partial: PartialEvent,
    /// Set if the last chunk ended with `\r`, whose `\n` may follow in the next chunk: true if the
    /// event in front of it was removed, so that the `\n` must be removed too.
    after_return: Option<bool>,
}

#[derive(Debug, Default)]
struct ChunkEdit {
    /// Bytes of earlier chunks that were held back and are now sent in front of the chunk.
    front: Vec<u8>,
    /// Ranges of the chunk to remove or replace, in ascending order.
    splices: Vec<Splice>,
}

impl Sse {
    pub(crate) fn new(api: Api, usage_events: UsageEvents) -> Self {
        Self {
            usage_events,
            summary: StreamSummary::new(api),
            partial: PartialEvent::default(),
            after_return: None,
        }
    }

    /// True if usage events are removed, so that the client may receive fewer bytes than the
    /// backend sent and a Content-Length would be wrong.
    pub(crate) fn is_hiding(&self) -> bool {
        self.usage_events == UsageEvents::Hide
    }

    pub(crate) fn summary(&self) -> &StreamSummary {
        &self.summary
    }

    /// Reads a chunk of the stream. Returns the bytes to forward to the client: none if all of them
    /// are hidden or held back.
    pub(crate) fn pass(&mut self, data: Bytes) -> Bytes {
        if data.is_empty() {
            return data;
        }
        let mut edit = ChunkEdit::default();
        let mut at = 0;
        if let Some(was_hidden) = self.after_return.take()
            && data[0] == b'\n'
        {
            at = 1;
            if was_hidden {
                edit.splices.push(Splice::removal(0..1));
            }
        }
        if self.partial.is_open() {
            let Some(end) = self.partial.end_in(&data) else {
                return self.grow(data);
            };
            at = end;
            self.close(&data[..end], &mut edit);
        }
        let whole = at + last_end(&data[at..]);
        self.events(&data[at..whole], at, &mut edit);
        let whole = whole + comments(&data[whole..]);
        if whole < data.len() {
            let rest = &data[whole..];
            self.partial.begin(rest, self.usage_events);
            self.summary.saw_end |= self.partial.is_end_mark();
            if self.partial.is_held() {
                edit.splices.push(Splice::removal(whole..data.len()));
            }
        } else if data.ends_with(b"\r") {
            let last = edit.splices.last();
            self.after_return = Some(last.is_some_and(|last| last.range.end == whole));
        }
        edit.apply(data)
    }

    /// Ends the stream. Returns the bytes that were held back, unless they turn out to be a usage
    /// event.
    pub(crate) fn finish(&mut self) -> Bytes {
        if !self.partial.is_open() {
            return Bytes::new();
        }
        let mut edit = ChunkEdit::default();
        // Some backends omit the line breaks after the last event. Add them, otherwise the usage in
        // it would not be read.
        self.close(b"\n\n", &mut edit);
        edit.front.into()
    }

    fn grow(&mut self, data: Bytes) -> Bytes {
        let front = self.partial.grow(&data);
        self.summary.saw_end |= self.partial.is_end_mark();
        if self.partial.is_held() {
            return Bytes::new();
        }
        let splices = Vec::new();
        ChunkEdit { front, splices }.apply(data)
    }

    fn close(&mut self, end: &[u8], edit: &mut ChunkEdit) {
        let held = self.partial.is_held().then(|| self.partial.length());
        match self.partial.close(end) {
            partial_event::CompleteEvent::Long(finder) => self.summary.note(finder.facts()),
            partial_event::CompleteEvent::Buffered(mut event) => {
                let mut within = ChunkEdit::default();
                self.events(&event, 0, &mut within);
                let Some(length) = held else { return };
                event.truncate(length);
                let mut front = ChunkEdit::default();
                for splice in within.splices {
                    let (before, after) = splice.split(length);
                    front.splices.extend(before);
                    edit.splices.extend(after);
                }
                edit.front = front.apply(event.into()).into();
            }
        }
    }

    /// Reads complete events for metering, and adds the usage events that the client must not see
    /// to `edit`. `base` is the offset of `text` in the bytes that `edit` changes.
    fn events(&mut self, text: &[u8], base: usize, edit: &mut ChunkEdit) {
        let mut usage = summary::next_usage(text, 0);
        let mut begin = 0;
        let mut last = None;
        let mut lines = lines(text);
        while let Some(line) = lines.next() {
            if !line.is_empty() {
                last = self.summary.line(line).or(last);
                continue;
            }
            let end = text.len() - lines.remaining();
            // Do not count comment lines as part of the event behind them: they may have arrived in
            // an earlier chunk and been forwarded already.
            begin += comments(&text[begin..end]);
            if usage.is_some_and(|at| at < begin) {
                usage = summary::next_usage(text, begin);
            }
            if usage.is_some_and(|at| at < end) {
                let is_usage_event = self.summary.usage(&text[begin..end]);
                let is_short = end - begin <= MAX_HIDDEN;
                if is_usage_event && self.is_hiding() && is_short && is_event(&text[begin..end]) {
                    self.hide(&text[begin..end], base + begin, edit);
                }
                usage = summary::next_usage(text, end);
            }
            begin = end;
        }
        if let Some(data) = last {
            self.summary.remember(data);
        }
    }

    /// Removes a usage event from the stream, or only its `usage` field if the event has other
    /// fields for the client. `event` has no comments at its start.
    fn hide(&self, event: &[u8], base: usize, edit: &mut ChunkEdit) {
        if let Some(splices) = usage_event::without_usage(self.summary.api(), event) {
            edit.splices.extend(splices.map(|splice| Splice {
                range: base + splice.range.start..base + splice.range.end,
                ..splice
            }));
        } else {
            let range = base..base + event.len();
            edit.splices.push(Splice::removal(range));
        }
    }
}

/// Returns the length of the comment lines at the start of an event. Comments are forwarded at once: they
/// keep the connection alive, and some backends send them without an empty line.
fn comments(event: &[u8]) -> usize {
    let mut length = 0;
    while event[length..].starts_with(b":")
        && let Some(end) = memchr::memchr2(b'\n', b'\r', &event[length..])
    {
        length += match &event[length + end..] {
            [b'\r', b'\n', ..] => end + 2,
            // Do not forward this comment yet: the `\n` that completes its line break may follow in
            // the next chunk.
            [b'\r'] => break,
            _ => end + 1,
        };
    }
    length
}

impl ChunkEdit {
    /// Returns the chunk with its edits. Bytes are copied only if several parts of the chunk
    /// remain.
    fn apply(self, data: Bytes) -> Bytes {
        if self.front.is_empty() && self.splices.is_empty() {
            return data;
        }
        let mut pieces: Vec<&[u8]> = Vec::with_capacity(2 * self.splices.len() + 2);
        pieces.push(&self.front);
        let mut at = 0;
        for splice in &self.splices {
            pieces.extend([&data[at..splice.range.start], splice.with.as_bytes()]);
            at = splice.range.end;
        }
        pieces.push(&data[at..]);
        pieces.retain(|piece| !piece.is_empty());
        let is_new =
            !self.front.is_empty() || self.splices.iter().any(|splice| !splice.with.is_empty());
        match &*pieces {
            [] => Bytes::new(),
            [piece] if !is_new => data.slice_ref(piece),
            pieces => pieces.concat().into(),
        }
    }
}
