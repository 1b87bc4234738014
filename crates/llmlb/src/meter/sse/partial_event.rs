//! The event of a stream whose end has not come.

use super::super::json::Finder;
use super::LONGEST_HIDDEN;
use super::lines::{end_after, is_an_event};
use super::summary::read;
use super::usage_event::is_alone;

/// An event that is longer is not kept, but followed as it comes. It is one with a picture or a
/// whole answer in it.
const LONGEST_KEPT: usize = 64 * 1024;

/// What there is of it.
#[derive(Debug, Default)]
pub(super) struct PartialEvent {
    bytes: Vec<u8>,
    /// Follows it instead, when it is long.
    huge: Option<Box<Finder>>,
    /// Its last byte; `None`: no event is open.
    last: Option<u8>,
    /// The client has nothing of it yet.
    is_held: bool,
}

/// An event that was open.
pub(super) enum Closed {
    Event(Vec<u8>),
    Huge(Box<Finder>),
}

impl PartialEvent {
    pub(super) fn is_there(&self) -> bool {
        self.last.is_some()
    }

    pub(super) fn is_held(&self) -> bool {
        self.is_held
    }

    /// How much is kept of it.
    pub(super) fn length(&self) -> usize {
        self.bytes.len()
    }

    /// Where it ends in what follows.
    pub(super) fn end_in(&self, data: &[u8]) -> Option<usize> {
        end_after(self.last?, data)
    }

    /// An event begins, and does not end.
    pub(super) fn begin(&mut self, bytes: &[u8], is_hiding: bool) {
        self.is_held = is_hiding;
        self.bytes.clear();
        self.add(bytes);
    }

    /// It goes on, and does not end. What was held back of it and may go on now.
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
        if let Some(huge) = &mut self.huge {
            huge.read(more);
            return;
        }
        self.bytes.extend_from_slice(more);
        self.is_held = self.is_held && self.may_be_usage_alone();
        if self.bytes.len() > LONGEST_KEPT {
            self.huge = Some(Box::new(read(&self.bytes)));
            self.bytes = Vec::new();
        }
    }

    /// Whether it can still become an event that has usage and nothing else.
    fn may_be_usage_alone(&self) -> bool {
        if self.bytes.len() > LONGEST_HIDDEN || !is_an_event(&self.bytes) {
            return false;
        }
        let finder = read(&self.bytes);
        if finder.is_over() {
            is_alone(&finder)
        } else {
            !finder.has_choices() && !finder.is_invalid()
        }
    }

    /// Whether it is the mark at the end of a stream, which some do not end as an event ends.
    pub(super) fn is_end_mark(&self) -> bool {
        let line = self.bytes.trim_ascii_end();
        let is_one_line = memchr::memchr2(b'\n', b'\r', line).is_none();
        let data = line.strip_prefix(b"data:").unwrap_or_default();
        is_one_line && data.trim_ascii_start() == b"[DONE]"
    }

    /// It ends with this.
    pub(super) fn close(&mut self, end: &[u8]) -> Closed {
        self.last = None;
        self.is_held = false;
        if let Some(mut finder) = self.huge.take() {
            finder.read(end);
            return Closed::Huge(finder);
        }
        let mut event = std::mem::take(&mut self.bytes);
        event.extend_from_slice(end);
        Closed::Event(event)
    }
}
