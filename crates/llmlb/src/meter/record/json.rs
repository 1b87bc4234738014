//! Serializes a usage record as one JSON object on a line, without the allocations of a JSON
//! library.

use super::MAX_NAME;

#[derive(Debug)]
pub(super) struct ObjectWriter<'a> {
    bytes: &'a mut Vec<u8>,
}

impl<'a> ObjectWriter<'a> {
    pub(super) fn new(bytes: &'a mut Vec<u8>) -> Self {
        bytes.push(b'{');
        Self { bytes }
    }

    pub(super) fn end(self) {
        self.bytes.push(b'}');
    }

    /// Writes a field name unescaped. Names are constants that need no escapes.
    fn name(&mut self, name: &str) {
        if self.bytes.last() != Some(&b'{') {
            self.bytes.push(b',');
        }
        self.plain_string(name);
        self.bytes.push(b':');
    }

    fn plain_string(&mut self, text: &str) {
        self.bytes.push(b'"');
        self.bytes.extend_from_slice(text.as_bytes());
        self.bytes.push(b'"');
    }

    /// Writes a text unescaped, so it must need no escapes, such as a constant or a UUID. A
    /// quotation mark would break the record.
    pub(super) fn plain(&mut self, name: &str, text: &str) {
        self.name(name);
        self.plain_string(text);
    }

    /// Writes any text, such as a model name that a client chose, escaped and truncated to
    /// [`MAX_NAME`] characters.
    pub(super) fn text(&mut self, name: &str, text: Option<&str>) {
        self.name(name);
        match text {
            Some(text) => self.string(truncate(text)),
            None => self.bytes.extend_from_slice(b"null"),
        }
    }

    pub(super) fn boolean(&mut self, name: &str, value: bool) {
        self.name(name);
        let word: &[u8] = if value { b"true" } else { b"false" };
        self.bytes.extend_from_slice(word);
    }

    pub(super) fn number(&mut self, name: &str, value: Option<u64>) {
        self.name(name);
        match value {
            Some(value) => self.digits(value, 1),
            None => self.bytes.extend_from_slice(b"null"),
        }
    }

    /// Writes a time, given in milliseconds since 1970, in RFC 3339 format; `null` if it is out of range.
    pub(super) fn time(&mut self, name: &str, ms: u64) {
        self.name(name);
        let time = i64::try_from(ms).map(jiff::Timestamp::from_millisecond);
        let Ok(Ok(time)) = time else {
            return self.bytes.extend_from_slice(b"null");
        };
        let time = jiff::tz::Offset::UTC.to_datetime(time);
        let number = |part: i8| u64::from(part.unsigned_abs());
        self.bytes.push(b'"');
        self.digits(u64::from(time.year().unsigned_abs()), 4);
        for (before, part) in [
            (b'-', time.month()),
            (b'-', time.day()),
            (b'T', time.hour()),
            (b':', time.minute()),
            (b':', time.second()),
        ] {
            self.bytes.push(before);
            self.digits(number(part), 2);
        }
        self.bytes.push(b'.');
        self.digits(ms % 1000, 3);
        self.bytes.extend_from_slice(b"Z\"");
    }

    pub(super) fn list<T>(
        &mut self,
        name: &str,
        all: &[T],
        mut each: impl FnMut(&mut ObjectWriter<'_>, &T),
    ) {
        self.name(name);
        self.bytes.push(b'[');
        for (place, one) in all.iter().enumerate() {
            if place > 0 {
                self.bytes.push(b',');
            }
            let mut line = ObjectWriter::new(self.bytes);
            each(&mut line, one);
            line.end();
        }
        self.bytes.push(b']');
    }

    /// Writes a number with at least `least` digits, as the parts of a time in a usage record need.
    fn digits(&mut self, mut value: u64, least: usize) {
        const ALL: usize = 20;
        let mut digits = [b'0'; ALL];
        let mut at = ALL;
        while value > 0 {
            at -= 1;
            digits[at] += u8::try_from(value % 10).unwrap_or_default();
            value /= 10;
        }
        self.bytes.extend_from_slice(&digits[at.min(ALL - least)..]);
    }

    fn string(&mut self, text: &str) {
        self.bytes.push(b'"');
        let needs = |byte: &u8| *byte < 0x20 || *byte == b'"' || *byte == b'\\';
        let mut rest = text.as_bytes();
        while let Some(at) = rest.iter().position(needs) {
            self.bytes.extend_from_slice(&rest[..at]);
            match rest[at] {
                byte @ (b'"' | b'\\') => self.bytes.extend_from_slice(&[b'\\', byte]),
                byte => {
                    let hex = b"0123456789abcdef";
                    let digits = [hex[usize::from(byte >> 4)], hex[usize::from(byte & 15)]];
                    self.bytes.extend_from_slice(b"\\u00");
                    self.bytes.extend_from_slice(&digits);
                }
            }
            rest = &rest[at + 1..];
        }
        self.bytes.extend_from_slice(rest);
        self.bytes.push(b'"');
    }
}

/// Returns the first [`MAX_NAME`] characters of a text, so that a client cannot make a usage record
/// long.
fn truncate(text: &str) -> &str {
    if text.len() <= MAX_NAME {
        return text;
    }
    let end = text.char_indices().nth(MAX_NAME);
    end.map_or(text, |(end, _)| &text[..end])
}
