//! Event of a stream whose end has not arrived: its buffered bytes, or a reader of an event too
//! long to buffer.

use super::super::json::Finder;
use super::lines::{end_after, is_event};
use super::summary::read;
use super::usage_event::is_usage_event;
use super::{MAX_HIDDEN, UsageEvents};

/// Maximum length of an event that is buffered. A longer event, such as one with an image, is read
/// in chunks by a [`Finder`], so that memory stays bounded.
const MAX_BUFFERED: usize = 64 * 1024;

#[derive(Debug, Default)]
pub(super) struct PartialEvent {
    bytes: Vec<u8>,
    /// Reads the event in chunks if it is too long to buffer; `bytes` is then empty.
    long: Option<Box<Finder>>,
    /// Last byte of the event that arrived, because the two line breaks that end the event may be
    /// split between chunks. `None` between events.
    last: Option<u8>,
    /// True if no byte of the event has been sent to the client, because the event may turn out to
    /// be a usage event that is hidden.
    is_held: bool,
}

/// An event whose end has arrived: its bytes, or the finder that has read an event too long to
/// buffer.
pub(super) enum CompleteEvent {
    Buffered(Vec<u8>),
    Long(Box<Finder>),
}

impl PartialEvent {
    pub(super) fn is_open(&self) -> bool {
        self.last.is_some()
    }

    pub(super) fn is_held(&self) -> bool {
        self.is_held
    }

    pub(super) fn length(&self) -> usize {
        self.bytes.len()
    }

    /// Returns the offset in `data`, the next chunk, at which the incomplete event ends; `None` if
    /// it does not end in this chunk.
    pub(super) fn end_in(&self, data: &[u8]) -> Option<usize> {
        end_after(self.last?, data)
    }

    /// Starts to buffer an event whose end is not in this chunk. If usage events are hidden, its
    /// bytes are held back.
    pub(super) fn begin(&mut self, bytes: &[u8], usage_events: UsageEvents) {
        self.is_held = usage_events == UsageEvents::Hide;
        self.bytes.clear();
        self.add(bytes);
    }

    /// Continues the event with a chunk that does not end it. Returns the bytes that were held back
    /// if the event can no longer be a usage event, so that the client waits no longer.
    pub(super) fn grow(&mut self, more: &[u8]) -> Vec<u8> {
        let mut front = Vec::new();
        if self.is_held {
            front.extend_from_slice(&self.bytes);
        }
        self.add(more);
        if self.is_held {
            front.clear();
        }
        front
    }

    fn add(&mut self, more: &[u8]) {
        self.last = more.last().copied().or(self.last);
        if let Some(long) = &mut self.long {
            long.read(more);
            return;
        }
        self.bytes.extend_from_slice(more);
        self.is_held = self.is_held && self.may_be_usage_event();
        if self.bytes.len() > MAX_BUFFERED {
            self.long = Some(Box::new(read(&self.bytes)));
            self.bytes = Vec::new();
        }
    }

    /// True if the event can still turn out to be a usage event, which must be hidden from the client.
    fn may_be_usage_event(&self) -> bool {
        if self.bytes.len() > MAX_HIDDEN || !is_event(&self.bytes) {
            return false;
        }
        let finder = read(&self.bytes);
        if finder.is_over() {
            is_usage_event(&finder)
        } else {
            !finder.has_choices() && !finder.is_invalid()
        }
    }

    /// True if the event is `data: [DONE]`, the end of the stream. Some backends send no empty line
    /// after it, so this is checked before the event is complete.
    pub(super) fn is_end_mark(&self) -> bool {
        let line = self.bytes.trim_ascii_end();
        let is_one_line = memchr::memchr2(b'\n', b'\r', line).is_none();
        let data = line.strip_prefix(b"data:").unwrap_or_default();
        is_one_line && data.trim_ascii_start() == b"[DONE]"
    }

    pub(super) fn close(&mut self, end: &[u8]) -> CompleteEvent {
        self.last = None;
        self.is_held = false;
        if let Some(mut finder) = self.long.take() {
            finder.read(end);
            return CompleteEvent::Long(finder);
        }
        let mut event = std::mem::take(&mut self.bytes);
        event.extend_from_slice(end);
        CompleteEvent::Buffered(event)
    }
}
