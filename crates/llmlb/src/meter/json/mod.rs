//! Finds usage, errors and the end of a JSON response while the response passes to the client.
//!
//! A response may arrive in any chunks and have any size: a list of embeddings has megabytes, with
//! the usage at its end. So the response is neither buffered nor parsed. A [`Finder`] tracks
//! brackets and strings, about as fast as a byte search, and copies only the values of known
//! fields. A `"usage"` inside a string or a tool's arguments does not count, wherever the chunks
//! are split.
//!
//! If a response is invalid JSON, the finder may find some of its fields or none, but it never
//! fails: the response is forwarded to the client in any case.

mod facts;
#[cfg(test)]
mod tests;

use std::sync::LazyLock;

use memchr::memmem;

pub(crate) use facts::{Choices, Facts, SessionEvent, is_error_value};

use crate::json;
use crate::json::{find_quote, next_structural};
use facts::{NameMeaning, Parent, ResponseField};

/// Number of bytes at the end of a complete response that are searched for usage first. Most
/// responses have it there, so the rest need not be read.
const END: usize = 4 << 10;
/// Field name `usage` with its quotation marks. Within a JSON string they would be escaped, so
/// generated text cannot match.
static USAGE_NAME: LazyLock<memmem::Finder<'static>> =
    LazyLock::new(|| memmem::Finder::new(br#""usage":"#));

/// Searches one JSON object, which arrives in chunks, for the fields that determine usage.
#[derive(Debug, Default)]
pub(crate) struct Finder {
    state: ParserState,
    /// True if the previous byte was a backslash within a string, so that a quotation mark as the
    /// next byte does not end the string.
    is_escaped: bool,
    depth: u64,
    /// Beginning of a field name whose end is in a later chunk.
    name: NameBuffer,
    meaning: NameMeaning,
    /// Nested object (`response` or `message`) whose fields are being read; `None` at the top
    /// level.
    parent: Option<Parent>,
    /// Field whose value is being read. `kept` has the part of the value from earlier chunks.
    field: Option<ResponseField>,
    kept: Vec<u8>,
    facts: Facts,
}

/// Token of the JSON grammar that the parser expects next, kept between chunks so that a response
/// can be split anywhere.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum ParserState {
    #[default]
    Start,
    Name,
    InName,
    Colon,
    Value,
    InString,
    InNested,
    InNestedString,
    InScalar,
    After,
    End,
    /// The input is not a JSON object. The rest is ignored, because a body of any format may pass
    /// to the client.
    Invalid,
}

/// Buffer for a field name that is split between chunks. Names longer than all known ones are not
/// stored, so that its size is fixed.
#[derive(Debug, Default)]
struct NameBuffer {
    bytes: [u8; 32],
    length: usize,
}

impl Finder {
    /// Returns what has been found so far: usage, errors and the end of the response.
    pub(crate) fn facts(&self) -> &Facts {
        &self.facts
    }

    pub(crate) fn is_over(&self) -> bool {
        self.state == ParserState::End
    }

    /// True if the input is not a JSON object. The rest of the input is ignored.
    pub(crate) fn is_invalid(&self) -> bool {
        self.state == ParserState::Invalid
    }

    /// True if the object has at least one choice, so that it is no usage event. The beginning of
    /// an unfinished list suffices.
    pub(crate) fn has_choices(&self) -> bool {
        let begun = self.field == Some(ResponseField::Choices);
        self.facts.choices == Choices::Filled || (begun && facts::is_filled(&self.kept))
    }

    /// Reads a response that has arrived completely. Most responses have their usage near the end,
    /// so the end is read first, and everything only if no complete usage is found there.
    pub(crate) fn read_response(&mut self, piece: &[u8]) {
        if self.state != ParserState::Start || !self.read_end(piece) {
            self.read(piece);
        }
    }

    /// Searches only the end of the response for usage. Returns `false` if there is no `usage` at
    /// the top level, so that the caller reads everything.
    fn read_end(&mut self, piece: &[u8]) -> bool {
        let from = piece.len().saturating_sub(END);
        let Some(near) = USAGE_NAME.find_iter(&piece[from..]).last() else {
            return false;
        };
        let (mut facts, mut count) = (Facts::default(), 0);
        let read = json::last_fields(piece, from + near, |_, at| {
            if count == 0 {
                facts.note(ResponseField::Usage, None, &piece[at]);
            }
            count += 1;
        });
        let is_read = read.is_ok() && facts.counts.has_total_or_parts();
        if is_read {
            self.facts = facts;
            self.state = ParserState::End;
        }
        is_read
    }

    /// Fast path for an object that arrives in one chunk. Returns `false` if the object is not
    /// complete or has a nested object that can contain usage, so that the caller tracks its
    /// brackets and strings.
    fn read_whole(&mut self, piece: &[u8]) -> bool {
        let (mut facts, mut is_flat) = (Facts::default(), true);
        let read = json::fields(piece, |name, at| match NameMeaning::classify(None, name) {
            NameMeaning::Field(field) => {
                // Pass one byte more than the maximum length, from which `note` recognizes that the
                // value is too long.
                let end = at.end.min(at.start + field.longest() + 1);
                facts.note(field, None, &piece[at.start..end]);
            }
            NameMeaning::Parent(_) => is_flat = false,
            NameMeaning::Other => {}
        });
        let is_read = read.is_ok() && is_flat;
        if is_read {
            self.facts = facts;
            self.state = ParserState::End;
        }
        is_read
    }

    /// Reads the next chunk of the object, which may begin and end anywhere, even within a string.
    pub(crate) fn read(&mut self, piece: &[u8]) {
        if self.state == ParserState::Start && self.read_whole(piece) {
            return;
        }
        let mut at = 0;
        let mut from = 0;
        while let Some(&byte) = piece.get(at) {
            match self.state {
                ParserState::Start => match byte {
                    b'{' => self.state = ParserState::Name,
                    // A byte order mark.
                    0xEF | 0xBB | 0xBF => {}
                    _ => self.skip_space(byte),
                },
                ParserState::Name => match byte {
                    b'"' => {
                        self.name.length = 0;
                        self.state = ParserState::InName;
                        at = self.read_name(piece, at + 1);
                        continue;
                    }
                    b'}' => self.close(),
                    _ => self.skip_space(byte),
                },
                ParserState::InName => {
                    at = self.read_name(piece, at);
                    continue;
                }
                ParserState::Colon => match byte {
                    b':' => self.state = ParserState::Value,
                    _ => self.skip_space(byte),
                },
                ParserState::Value => {
                    if !is_space(byte) {
                        from = at;
                        self.begin(byte);
                    }
                }
                ParserState::InString | ParserState::InNestedString => {
                    let (end, is_closed) = self.string(piece, at);
                    at = end;
                    if is_closed && self.state == ParserState::InString {
                        self.end(&piece[from..at]);
                    } else if is_closed {
                        self.state = ParserState::InNested;
                    }
                    continue;
                }
                ParserState::InNested => {
                    at = next_structural(piece, at);
                    match piece.get(at) {
                        None => break,
                        Some(b'"') => self.state = ParserState::InNestedString,
                        Some(b'{' | b'[') => self.depth += 1,
                        Some(_) => {
                            self.depth -= 1;
                            if self.depth == 0 {
                                self.end(&piece[from..=at]);
                            }
                        }
                    }
                }
                ParserState::InScalar => {
                    if byte == b',' || byte == b'}' || is_space(byte) {
                        self.end(&piece[from..at]);
                        continue;
                    }
                }
                ParserState::After => match byte {
                    b',' => self.state = ParserState::Name,
                    b'}' => self.close(),
                    _ => self.skip_space(byte),
                },
                ParserState::End | ParserState::Invalid => return,
            }
            at += 1;
        }
        self.keep(&piece[from.min(piece.len())..]);
    }

    /// Skips white space between two JSON tokens. Any other byte marks the input as invalid.
    fn skip_space(&mut self, byte: u8) {
        if !is_space(byte) {
            self.state = ParserState::Invalid;
        }
    }

    /// Reads a field name to its end, or to the end of the chunk. Returns the offset in the chunk
    /// at which reading continues.
    fn read_name(&mut self, piece: &[u8], at: usize) -> usize {
        let (end, is_closed) = self.string(piece, at);
        if is_closed && self.name.length == 0 {
            self.meaning = NameMeaning::classify_escaped(self.parent, &piece[at..end - 1]);
        } else {
            self.name.push(&piece[at..end]);
            self.meaning = NameMeaning::classify_escaped(self.parent, self.name.written());
        }
        if is_closed {
            self.state = ParserState::Colon;
        }
        end
    }

    /// Reads a string to its closing quotation mark, or to the end of the chunk. Returns the offset
    /// at which reading continues, and `true` if the string ended.
    fn string(&mut self, piece: &[u8], mut from: usize) -> (usize, bool) {
        if self.is_escaped {
            self.is_escaped = false;
            from += 1;
        }
        let mut at = from;
        let is_odd = |to: usize| {
            let before = piece[from..to].iter().rev();
            before.take_while(|&&byte| byte == b'\\').count() % 2 == 1
        };
        while let Some(near) = find_quote(&piece[at..]) {
            at += near + 1;
            if !is_odd(at - 1) {
                return (at, true);
            }
        }
        self.is_escaped = is_odd(piece.len());
        (piece.len(), false)
    }

    /// Begins a value of a field: its first byte determines if it is a string, an object, a list or
    /// another value.
    fn begin(&mut self, byte: u8) {
        self.field = None;
        match self.meaning {
            NameMeaning::Parent(parent) if byte == b'{' => {
                self.parent = Some(parent);
                self.state = ParserState::Name;
                return;
            }
            NameMeaning::Field(field) => self.field = Some(field),
            NameMeaning::Parent(_) | NameMeaning::Other => {}
        }
        self.kept.clear();
        self.depth = 0;
        self.state = match byte {
            b'"' => ParserState::InString,
            b'{' | b'[' => {
                self.depth = 1;
                ParserState::InNested
            }
            _ => ParserState::InScalar,
        };
    }

    /// Ends the value of the current field and derives facts from it, such as token counts. `rest`
    /// is the part of the value in the current chunk; `kept` has the earlier parts.
    fn end(&mut self, rest: &[u8]) {
        self.state = ParserState::After;
        let Some(field) = self.field else { return };
        let value = if self.kept.is_empty() {
            // Truncate a value that is in one chunk exactly as `keep` truncates one that is split
            // between chunks. Otherwise the usage would depend on the split.
            &rest[..rest.len().min(field.longest() + 1)]
        } else {
            self.keep(rest);
            &self.kept
        };
        self.field = None;
        self.facts.note(field, self.parent, value);
    }

    /// Buffers the next part of the current value, up to the maximum length of its field, so that
    /// memory stays bounded.
    fn keep(&mut self, more: &[u8]) {
        if let Some(field) = self.field {
            let room = (field.longest() + 1).saturating_sub(self.kept.len());
            self.kept.extend_from_slice(&more[..room.min(more.len())]);
        }
    }

    /// Ends the current object at its `}`. After a nested object the finder continues with the
    /// fields of the top-level object. After the top-level object the response is complete.
    fn close(&mut self) {
        self.state = match self.parent.take() {
            Some(_) => ParserState::After,
            None => ParserState::End,
        };
    }
}

/// True for JSON's white space, which unlike ASCII's does not include the form feed.
fn is_space(byte: u8) -> bool {
    matches!(byte, b' ' | b'\t' | b'\n' | b'\r')
}

impl NameBuffer {
    fn push(&mut self, more: &[u8]) {
        let end = self.length + more.len();
        match self.bytes.get_mut(self.length..end) {
            Some(place) => place.copy_from_slice(more),
            // The name is too long for the buffer. A quotation mark in the buffer makes sure that it
            // matches no known name.
            None => self.bytes[0] = b'"',
        }
        self.length = end.min(self.bytes.len());
    }

    fn written(&self) -> &[u8] {
        let written = &self.bytes[..self.length];
        written.strip_suffix(b"\"").unwrap_or_default()
    }
}
