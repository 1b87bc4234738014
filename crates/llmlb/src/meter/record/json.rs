//! Serializes a usage record as one JSON object on a line, without the allocations of a JSON
//! library.

use super::MAX_NAME;

/// Name of a field, with a comma in front of it and a colon behind it, so that one copy writes all of it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FieldName(pub(crate) &'static str);

/// Returns the [`FieldName`] of a constant that needs no escapes.
macro_rules! field {
    ($name:literal) => {
        $crate::meter::record::FieldName(concat!(",\"", $name, "\":"))
    };
}
pub(crate) use field;

/// Writes the fields of one JSON object.
#[derive(Debug)]
pub(crate) struct ObjectWriter<'a> {
    text: &'a mut String,
    is_empty: bool,
}

impl<'a> ObjectWriter<'a> {
    pub(super) fn new(text: &'a mut String) -> Self {
        text.push('{');
        Self {
            text,
            is_empty: true,
        }
    }

    /// Continues an object whose first fields were written otherwise, with a comma after them. `text` is empty.
    pub(crate) fn resume(text: &'a mut String) -> Self {
        Self {
            text,
            is_empty: true,
        }
    }

    pub(crate) fn end(self) {
        self.text.push('}');
    }

    fn name(&mut self, FieldName(name): FieldName) {
        // Omit the comma in front of the first field, otherwise the record would be invalid JSON.
        let from = usize::from(std::mem::take(&mut self.is_empty));
        self.text.push_str(name.get(from..).unwrap_or_default());
    }

    fn plain_string(&mut self, text: &str) {
        self.text.push('"');
        self.text.push_str(text);
        self.text.push('"');
    }

    /// Writes a text unescaped, so it must need no escapes, such as a constant or a UUID. A
    /// quotation mark would break the record.
    pub(crate) fn plain(&mut self, name: FieldName, text: &str) {
        self.name(name);
        self.plain_string(text);
    }

    /// Writes any text, such as a model name that a client chose, escaped and truncated to
    /// [`MAX_NAME`] characters.
    pub(crate) fn text(&mut self, name: FieldName, text: Option<&str>) {
        self.name(name);
        match text {
            Some(text) => self.string(truncate(text)),
            None => self.text.push_str("null"),
        }
    }

    pub(crate) fn boolean(&mut self, name: FieldName, value: bool) {
        self.name(name);
        self.text.push_str(if value { "true" } else { "false" });
    }

    pub(crate) fn number(&mut self, name: FieldName, value: Option<u64>) {
        self.name(name);
        match value {
            Some(value) => self.text.push_str(itoa::Buffer::new().format(value)),
            None => self.text.push_str("null"),
        }
    }

    /// Writes a time, given in milliseconds since 1970, in RFC 3339 format; `null` if it is out of range.
    pub(crate) fn time(&mut self, name: FieldName, ms: u64) {
        self.name(name);
        let time = i64::try_from(ms).map(jiff::Timestamp::from_millisecond);
        let Ok(Ok(time)) = time else {
            return self.text.push_str("null");
        };
        let time = jiff::tz::Offset::UTC.to_datetime(time);
        let mut text = *b"\"0000-00-00T00:00:00.000Z\"";
        let year = i64::from(time.year()).unsigned_abs();
        let part = |part: i8| u64::from(part.unsigned_abs());
        for (range, number) in [
            (1..5, year),
            (6..8, part(time.month())),
            (9..11, part(time.day())),
            (12..14, part(time.hour())),
            (15..17, part(time.minute())),
            (18..20, part(time.second())),
            (21..24, ms % 1000),
        ] {
            write_digits(&mut text[range], number);
        }
        self.text.push_str(str::from_utf8(&text).unwrap_or("null"));
    }

    pub(crate) fn list<T>(
        &mut self,
        name: FieldName,
        all: &[T],
        mut each: impl FnMut(&mut ObjectWriter<'_>, &T),
    ) {
        self.name(name);
        self.text.push('[');
        for (place, one) in all.iter().enumerate() {
            if place > 0 {
                self.text.push(',');
            }
            let mut line = ObjectWriter::new(self.text);
            each(&mut line, one);
            line.end();
        }
        self.text.push(']');
    }

    fn string(&mut self, text: &str) {
        self.text.push('"');
        // Fast path: a search that does not stop at the first byte examines several bytes per instruction.
        if text
            .bytes()
            .fold(false, |any, byte| any | needs_escape(byte))
        {
            self.escaped(text);
        } else {
            self.text.push_str(text);
        }
        self.text.push('"');
    }

    fn escaped(&mut self, text: &str) {
        for letter in text.chars() {
            match u8::try_from(letter) {
                Ok(byte @ (b'"' | b'\\')) => self.text.extend(['\\', char::from(byte)]),
                Ok(byte @ 0..0x20) => {
                    let digit = |half| char::from(b"0123456789abcdef"[usize::from(half)]);
                    self.text.push_str("\\u00");
                    self.text.extend([digit(byte >> 4), digit(byte & 15)]);
                }
                _ => self.text.push(letter),
            }
        }
    }
}

/// True for a byte that a JSON string contains only escaped.
fn needs_escape(byte: u8) -> bool {
    byte < 0x20 || byte == b'"' || byte == b'\\'
}

/// Writes the last decimal digits of a number, as many as there is space for.
fn write_digits(space: &mut [u8], mut number: u64) {
    for digit in space.iter_mut().rev() {
        // The remainder is below 10, so the conversion cannot fail.
        *digit = b'0' + u8::try_from(number % 10).unwrap_or_default();
        number /= 10;
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
