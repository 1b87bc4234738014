//! Serializes one JSON object on a line, without the allocations of a JSON library.

use super::MAX_NAME;

/// Writes the fields of one JSON object.
#[derive(Debug)]
pub(crate) struct ObjectWriter<'a> {
    bytes: &'a mut Vec<u8>,
}

impl<'a> ObjectWriter<'a> {
    pub(super) fn new(bytes: &'a mut Vec<u8>) -> Self {
        bytes.push(b'{');
        Self { bytes }
    }

    /// Continues an object whose first fields were written otherwise, with a comma after them. `bytes` is empty.
    pub(crate) fn resume(bytes: &'a mut Vec<u8>) -> Self {
        Self { bytes }
    }

    pub(crate) fn end(self) {
        self.bytes.push(b'}');
    }

    /// Writes a field name. Names are constants that need no escapes.
    fn name(&mut self, name: &str) {
        if !matches!(self.bytes.last(), None | Some(b'{')) {
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

    /// Writes a text that needs no escapes, such as a constant or a UUID.
    pub(crate) fn plain(&mut self, name: &str, text: &str) {
        self.name(name);
        self.plain_string(text);
    }

    /// Writes any text, escaped and truncated to [`MAX_NAME`] characters.
    pub(crate) fn text(&mut self, name: &str, text: Option<&str>) {
        self.name(name);
        match text {
            Some(text) => self.string(truncate(text)),
            None => self.bytes.extend_from_slice(b"null"),
        }
    }

    pub(crate) fn boolean(&mut self, name: &str, value: bool) {
        self.name(name);
        let word: &[u8] = if value { b"true" } else { b"false" };
        self.bytes.extend_from_slice(word);
    }

    pub(crate) fn number(&mut self, name: &str, value: Option<u64>) {
        self.name(name);
        match value {
            Some(value) => self.digits(value, 1),
            None => self.bytes.extend_from_slice(b"null"),
        }
    }

    /// Writes a time, given in milliseconds since 1970, in RFC 3339 format; `null` if it is out of range.
    pub(crate) fn time(&mut self, name: &str, ms: u64) {
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

    pub(crate) fn list<T>(
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

    /// Writes a number with at least `least` digits.
    fn digits(&mut self, mut value: u64, least: usize) {
        const ALL: usize = 20;
        let mut digits = [b'0'; ALL];
        let mut at = ALL;
        while value > 0 {
            at -= 1;
            // The remainder is below 10, so the conversion cannot fail.
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

/// Returns the first [`MAX_NAME`] characters of a text.
fn truncate(text: &str) -> &str {
    if text.len() <= MAX_NAME {
        return text;
    }
    let end = text.char_indices().nth(MAX_NAME);
    end.map_or(text, |(end, _)| &text[..end])
}
