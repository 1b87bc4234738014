//! Writing one JSON object on a line, into memory that is used again.

use super::LONGEST_NAME;

/// The object that is being written.
#[derive(Debug)]
pub(super) struct Line<'a> {
    bytes: &'a mut Vec<u8>,
}

impl<'a> Line<'a> {
    pub(super) fn new(bytes: &'a mut Vec<u8>) -> Self {
        bytes.push(b'{');
        Self { bytes }
    }

    pub(super) fn end(self) {
        self.bytes.push(b'}');
    }

    /// `name` is one of ours: it has nothing to escape.
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

    /// A text of ours that has nothing to escape.
    pub(super) fn plain(&mut self, name: &str, text: &str) {
        self.name(name);
        self.plain_string(text);
    }

    /// Any text, cut to a reasonable length.
    pub(super) fn text(&mut self, name: &str, text: Option<&str>) {
        self.name(name);
        match text {
            Some(text) => self.string(cut(text)),
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

    /// A time in milliseconds since 1970, as RFC 3339 has it.
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
        mut each: impl FnMut(&mut Line<'_>, &T),
    ) {
        self.name(name);
        self.bytes.push(b'[');
        for (place, one) in all.iter().enumerate() {
            if place > 0 {
                self.bytes.push(b',');
            }
            let mut line = Line::new(self.bytes);
            each(&mut line, one);
            line.end();
        }
        self.bytes.push(b']');
    }

    /// At least so many digits.
    fn digits(&mut self, mut value: u64, least: usize) {
        const ALL: usize = 20;
        let mut digits = [b'0'; ALL];
        let mut at = ALL;
        while value > 0 {
            at -= 1;
            // A digit fits.
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

/// The beginning of a text.
fn cut(text: &str) -> &str {
    if text.len() <= LONGEST_NAME {
        return text;
    }
    let end = text.char_indices().nth(LONGEST_NAME);
    end.map_or(text, |(end, _)| &text[..end])
}
