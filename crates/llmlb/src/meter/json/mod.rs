//! What a JSON answer says about itself, found as it passes.
//!
//! An answer may come in any pieces and have any size (a list of embeddings is megabytes long,
//! and its usage stands at the end). So it is neither kept nor parsed: a [`Finder`] follows its
//! brackets and strings, at the speed of a search for a byte, and keeps only the values of the
//! few fields that it knows. A `"usage"` inside of a text or of a tool's arguments is not such a
//! field, wherever the pieces are cut.
//!
//! It follows valid JSON. Of anything else it finds something or nothing, but never fails.

mod facts;
#[cfg(test)]
mod tests;

use std::sync::LazyLock;

use memchr::memmem;

pub(crate) use facts::{Choices, Facts, is_an_error};

use crate::json;
use crate::json::{quote, structure};
use facts::{Field, Named, Parent};

/// How much of an answer is its end.
const END: usize = 4 << 10;
/// Outside of a string it is what it looks like, and within one its quotation marks are escaped.
static NAME: LazyLock<memmem::Finder<'static>> =
    LazyLock::new(|| memmem::Finder::new(br#""usage":"#));

/// Follows one JSON object.
#[derive(Debug, Default)]
pub(crate) struct Finder {
    state: State,
    /// The last byte was a backslash that escapes the next one.
    is_escaped: bool,
    /// How many brackets of a value are open.
    depth: u64,
    /// What there is of a name that came in pieces.
    name: Name,
    /// What the name means whose value comes.
    named: Named,
    /// Whose fields are read, if not the answer's own.
    parent: Option<Parent>,
    /// The field whose value is being kept, and what there is of it.
    field: Option<Field>,
    kept: Vec<u8>,
    facts: Facts,
}

/// What comes next.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum State {
    #[default]
    Start,
    /// A name, or the end of the object.
    Name,
    InName,
    Colon,
    Value,
    InString,
    /// More of an object or a list.
    InNested,
    InNestedString,
    /// More of a number or a word.
    InScalar,
    /// A comma, or the end of the object.
    After,
    End,
    /// It is no object, or none that is valid.
    Strange,
}

/// A field's name, if it is short enough to be one of ours.
#[derive(Debug, Default)]
struct Name {
    bytes: [u8; 32],
    length: usize,
}

impl Finder {
    /// What was found so far.
    pub(crate) fn facts(&self) -> &Facts {
        &self.facts
    }

    /// Whether the object is complete.
    pub(crate) fn is_over(&self) -> bool {
        self.state == State::End
    }

    /// Whether it is something else than an object, which is not followed any more.
    pub(crate) fn is_invalid(&self) -> bool {
        self.state == State::Strange
    }

    /// Whether it is known to have choices, be it from the beginning of the list.
    pub(crate) fn has_choices(&self) -> bool {
        let begun = self.field == Some(Field::Choices);
        self.facts.choices == Choices::Some || (begun && facts::is_filled(&self.kept))
    }

    /// All of an answer of which only the usage matters if it is told: it stands near the end. If it
    /// is not found there, or only in part, everything is read.
    pub(crate) fn read_answer(&mut self, piece: &[u8]) {
        if self.state != State::Start || !self.read_end(piece) {
            self.read(piece);
        }
    }

    /// `false`: there is no usage of its own near its end.
    fn read_end(&mut self, piece: &[u8]) -> bool {
        let from = piece.len().saturating_sub(END);
        let Some(near) = NAME.find_iter(&piece[from..]).last() else {
            return false;
        };
        let (mut facts, mut count) = (Facts::default(), 0);
        let read = json::last_fields(piece, from + near, |_, at| {
            if count == 0 {
                facts.note(Field::Usage, None, &piece[at]);
            }
            count += 1;
        });
        let is_read = read.is_ok() && facts.counts.has_total_or_parts();
        if is_read {
            self.facts = facts;
            self.state = State::End;
        }
        is_read
    }

    /// All of it at once, which is quicker. `false`: it is not all here, or what matters is deeper.
    fn read_whole(&mut self, piece: &[u8]) -> bool {
        let (mut facts, mut is_flat) = (Facts::default(), true);
        let read = json::fields(piece, |name, at| match Named::classify(None, name) {
            Named::Field(field) => {
                // What is longer is told from what is as long.
                let end = at.end.min(at.start + field.longest() + 1);
                facts.note(field, None, &piece[at.start..end]);
            }
            Named::Parent(_) => is_flat = false,
            Named::Other => {}
        });
        let is_read = read.is_ok() && is_flat;
        if is_read {
            self.facts = facts;
            self.state = State::End;
        }
        is_read
    }

    /// Reads on.
    pub(crate) fn read(&mut self, piece: &[u8]) {
        if self.state == State::Start && self.read_whole(piece) {
            return;
        }
        let mut at = 0;
        // Where the value that is being kept begins in this piece.
        let mut from = 0;
        while let Some(&byte) = piece.get(at) {
            match self.state {
                State::Start => match byte {
                    b'{' => self.state = State::Name,
                    // A byte order mark.
                    0xEF | 0xBB | 0xBF => {}
                    _ => self.skip_space(byte),
                },
                State::Name => match byte {
                    b'"' => {
                        self.name.length = 0;
                        self.state = State::InName;
                        at = self.read_name(piece, at + 1);
                        continue;
                    }
                    b'}' => self.close(),
                    _ => self.skip_space(byte),
                },
                State::InName => {
                    at = self.read_name(piece, at);
                    continue;
                }
                State::Colon => match byte {
                    b':' => self.state = State::Value,
                    _ => self.skip_space(byte),
                },
                State::Value => {
                    if !is_space(byte) {
                        from = at;
                        self.begin(byte);
                    }
                }
                State::InString | State::InNestedString => {
                    let (end, is_closed) = self.string(piece, at);
                    at = end;
                    if is_closed && self.state == State::InString {
                        self.end(&piece[from..at]);
                    } else if is_closed {
                        self.state = State::InNested;
                    }
                    continue;
                }
                State::InNested => {
                    at = structure(piece, at);
                    match piece.get(at) {
                        None => break,
                        Some(b'"') => self.state = State::InNestedString,
                        Some(b'{' | b'[') => self.depth += 1,
                        Some(_) => {
                            self.depth -= 1;
                            if self.depth == 0 {
                                self.end(&piece[from..=at]);
                            }
                        }
                    }
                }
                State::InScalar => {
                    if byte == b',' || byte == b'}' || is_space(byte) {
                        self.end(&piece[from..at]);
                        continue;
                    }
                }
                State::After => match byte {
                    b',' => self.state = State::Name,
                    b'}' => self.close(),
                    _ => self.skip_space(byte),
                },
                State::End | State::Strange => return,
            }
            at += 1;
        }
        self.keep(&piece[from.min(piece.len())..]);
    }

    /// Nothing but white space may be here.
    fn skip_space(&mut self, byte: u8) {
        if !is_space(byte) {
            self.state = State::Strange;
        }
    }

    /// To the end of a name, or of the piece.
    fn read_name(&mut self, piece: &[u8], at: usize) -> usize {
        let (end, is_closed) = self.string(piece, at);
        if is_closed && self.name.length == 0 {
            self.named = Named::classify(self.parent, &piece[at..end - 1]);
        } else {
            self.name.push(&piece[at..end]);
            self.named = Named::classify(self.parent, self.name.written());
        }
        if is_closed {
            self.state = State::Colon;
        }
        end
    }

    /// To the end of a string, or of the piece.
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
        while let Some(near) = quote(&piece[at..]) {
            at += near + 1;
            if !is_odd(at - 1) {
                return (at, true);
            }
        }
        self.is_escaped = is_odd(piece.len());
        (piece.len(), false)
    }

    /// A value begins with this byte.
    fn begin(&mut self, byte: u8) {
        self.field = None;
        match self.named {
            Named::Parent(parent) if byte == b'{' => {
                self.parent = Some(parent);
                self.state = State::Name;
                return;
            }
            Named::Field(field) => self.field = Some(field),
            Named::Parent(_) | Named::Other => {}
        }
        self.kept.clear();
        self.depth = 0;
        self.state = match byte {
            b'"' => State::InString,
            b'{' | b'[' => {
                self.depth = 1;
                State::InNested
            }
            _ => State::InScalar,
        };
    }

    /// A value is complete; what was not kept of it is here.
    fn end(&mut self, rest: &[u8]) {
        self.state = State::After;
        let Some(field) = self.field else { return };
        let value = if self.kept.is_empty() {
            // As long as it would be if it had come in pieces.
            &rest[..rest.len().min(field.longest() + 1)]
        } else {
            self.keep(rest);
            &self.kept
        };
        self.field = None;
        self.facts.note(field, self.parent, value);
    }

    /// Keeps more of the value, but never much more than its field can have.
    fn keep(&mut self, more: &[u8]) {
        if let Some(field) = self.field {
            let room = (field.longest() + 1).saturating_sub(self.kept.len());
            self.kept.extend_from_slice(&more[..room.min(more.len())]);
        }
    }

    /// An object whose fields were read is complete.
    fn close(&mut self) {
        self.state = match self.parent.take() {
            Some(_) => State::After,
            None => State::End,
        };
    }
}

/// The white space of JSON, which is less than that of ASCII.
fn is_space(byte: u8) -> bool {
    matches!(byte, b' ' | b'\t' | b'\n' | b'\r')
}

impl Name {
    fn push(&mut self, more: &[u8]) {
        let end = self.length + more.len();
        match self.bytes.get_mut(self.length..end) {
            Some(place) => place.copy_from_slice(more),
            // Longer than all of ours.
            None => self.bytes[0] = b'"',
        }
        self.length = end.min(self.bytes.len());
    }

    /// As it was written, without the quotation mark that ends it.
    fn written(&self) -> &[u8] {
        let written = &self.bytes[..self.length];
        written.strip_suffix(b"\"").unwrap_or_default()
    }
}
