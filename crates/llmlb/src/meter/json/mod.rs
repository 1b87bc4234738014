//! Finds usage, errors and the end of a JSON response while the response passes to the client.
//!
//! A response may arrive in any chunks and have any size: a list of embeddings has megabytes, with the
//! usage at its end. So the response is neither buffered nor parsed. A [`Finder`] tracks brackets and
//! strings, about as fast as a byte search, and copies only the values of known fields. A `"usage"`
//! inside a string or a tool's arguments does not match, wherever the chunks are split.
//!
//! Of invalid JSON the finder may find some fields or none. It never fails.

mod facts;
#[cfg(test)]
mod tests;

use std::sync::LazyLock;

use memchr::memmem;

pub(crate) use facts::{Choices, Facts, SessionEvent, is_error_value};

use crate::json;
use crate::json::{find_quote, next_structural};
use facts::{NameMeaning, Parent, ResponseField};

/// Number of bytes at the end of a response that are searched for usage first, before the whole response
/// is read.
const END: usize = 4 << 10;
/// The field name `usage`. The quotation marks cannot match within a string, where they are escaped.
static USAGE_NAME: LazyLock<memmem::Finder<'static>> =
    LazyLock::new(|| memmem::Finder::new(br#""usage":"#));

/// Reads one JSON object that arrives in chunks.
#[derive(Debug, Default)]
pub(crate) struct Finder {
    state: ParserState,
    /// The last byte was a backslash that escapes the next byte.
    is_escaped: bool,
    /// Number of open brackets in the current value.
    depth: u64,
    /// Beginning of a field name that is split between chunks.
    name: NameBuffer,
    /// Meaning of the last field name.
    meaning: NameMeaning,
    /// The nested object whose fields are read; `None` at the top level.
    parent: Option<Parent>,
    /// The field whose value is being read, and the part of the value from earlier chunks.
    field: Option<ResponseField>,
    kept: Vec<u8>,
    facts: Facts,
}

/// Position of the parser in the JSON grammar, kept between chunks: the token that it expects next.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum ParserState {
    #[default]
    Start,
    /// The parser expects a field name, or the end of the object.
    Name,
    InName,
    Colon,
    Value,
    /// Inside a string that is the value of a field.
    InString,
    /// Inside an object or a list that is the value of a field.
    InNested,
    InNestedString,
    /// Inside a number or a literal such as `true`.
    InScalar,
    /// The parser expects a comma, or the end of the object.
    After,
    End,
    /// The input is not an object, or not valid JSON. The rest is ignored.
    Invalid,
}

/// Buffer for a field name. Names longer than all known ones are not stored.
#[derive(Debug, Default)]
struct NameBuffer {
    bytes: [u8; 32],
    length: usize,
}

impl Finder {
    /// Returns the usage, the errors and the end of the response, as far as they have arrived.
    pub(crate) fn facts(&self) -> &Facts {
        &self.facts
    }

    /// True if the end of the object was read.
    pub(crate) fn is_over(&self) -> bool {
        self.state == ParserState::End
    }

    /// True if the input is not a JSON object. The rest of the input is ignored.
    pub(crate) fn is_invalid(&self) -> bool {
        self.state == ParserState::Invalid
    }

    /// True if the object has choices. The beginning of the list is enough to know.
    pub(crate) fn has_choices(&self) -> bool {
        let begun = self.field == Some(ResponseField::Choices);
        self.facts.choices == Choices::Filled || (begun && facts::is_filled(&self.kept))
    }

    /// Reads a response that has arrived completely. Most responses have their usage near the end, so the
    /// end is read first. Everything is read only if the end has no complete usage.
    pub(crate) fn read_response(&mut self, piece: &[u8]) {
        if self.state != ParserState::Start || !self.read_end(piece) {
            self.read(piece);
        }
    }

    /// Reads the usage near the end of the response. Returns `false` if there is none at the top level.
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

    /// Fast path for an object that arrives in one chunk. Returns `false` if the object is not complete,
    /// or has a nested object that can contain usage.
    fn read_whole(&mut self, piece: &[u8]) -> bool {
        let (mut facts, mut is_flat) = (Facts::default(), true);
        let read = json::fields(piece, |name, at| match NameMeaning::classify(None, name) {
            NameMeaning::Field(field) => {
                // Pass one byte more than the maximum, which shows that the value is too long.
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

    /// Reads the next chunk.
    pub(crate) fn read(&mut self, piece: &[u8]) {
        if self.state == ParserState::Start && self.read_whole(piece) {
            return;
        }
        let mut at = 0;
        // Start of the current value in this chunk.
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

    /// Marks the input as invalid unless this byte is white space.
    fn skip_space(&mut self, byte: u8) {
        if !is_space(byte) {
            self.state = ParserState::Invalid;
        }
    }

    /// Reads to the end of a field name, or of the chunk. Returns the offset of that end.
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

    /// Reads to the end of a string, or of the chunk. Returns the offset, and `true` if the string ended.
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

    /// Begins a value whose first byte is given.
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

    /// Ends a value. `rest` is its part in the current chunk.
    fn end(&mut self, rest: &[u8]) {
        self.state = ParserState::After;
        let Some(field) = self.field else { return };
        let value = if self.kept.is_empty() {
            // Truncate the value as `keep` truncates a value that is split between chunks. The result
            // must not depend on the split.
            &rest[..rest.len().min(field.longest() + 1)]
        } else {
            self.keep(rest);
            &self.kept
        };
        self.field = None;
        self.facts.note(field, self.parent, value);
    }

    /// Buffers more of the current value, up to the maximum length of its field.
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

    /// Returns the buffered name without its closing quotation mark; empty if the mark has not arrived.
    fn written(&self) -> &[u8] {
        let written = &self.bytes[..self.length];
        written.strip_suffix(b"\"").unwrap_or_default()
    }
}
