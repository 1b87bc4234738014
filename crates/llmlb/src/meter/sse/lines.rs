//! Splits an event stream into lines and events. A line ends with `\n`, `\r\n` or `\r`; an event ends with
//! an empty line.

use memchr::{memchr2, memrchr2};

/// Iterator over the lines of an event stream, without their line breaks. The last line need not
/// have a line break.
pub(super) struct SseLines<'a> {
    rest: &'a [u8],
}

pub(super) fn lines(text: &[u8]) -> SseLines<'_> {
    SseLines { rest: text }
}

impl<'a> Iterator for SseLines<'a> {
    type Item = &'a [u8];

    fn next(&mut self) -> Option<&'a [u8]> {
        if self.rest.is_empty() {
            return None;
        }
        let end = memchr2(b'\n', b'\r', self.rest).unwrap_or(self.rest.len());
        let line = &self.rest[..end];
        self.rest = &self.rest[past_end(self.rest, end)..];
        Some(line)
    }
}

impl SseLines<'_> {
    /// Returns the number of bytes after the last line that was returned, from which the caller
    /// computes the offset of an event's end.
    pub(super) fn remaining(&self) -> usize {
        self.rest.len()
    }
}

/// True if every line is a field or a comment of an event stream. Text that is no event must not be
/// taken for a usage event and removed. The last line may be incomplete.
pub(super) fn is_event(text: &[u8]) -> bool {
    const NAMES: [&[u8]; 6] = [b"data", b"event", b"id", b"retry", b":", b"\xEF\xBB\xBF"];
    lines(text).all(|line| {
        let mut names = NAMES.iter();
        names.any(|name| line.starts_with(name) || name.starts_with(line))
    })
}

/// True if a response that begins with this text, which may be a single byte, can be an event
/// stream.
pub(crate) fn may_begin(text: &[u8]) -> bool {
    const NAMES: [&[u8]; 5] = [b"data:", b"event:", b"id:", b"retry:", b":"];
    let mut names = NAMES.iter();
    names.any(|name| text.starts_with(name) || name.starts_with(text))
}

/// Returns the offset of the next line, given the offset of a line break.
fn past_end(text: &[u8], end: usize) -> usize {
    match text.get(end..) {
        Some([b'\r', b'\n', ..]) => end + 2,
        Some([_, ..]) => end + 1,
        _ => end,
    }
}

/// Returns the end of the last complete event in a text that begins with an event; 0 if no event is
/// complete. The rest is kept for the next chunk.
pub(super) fn last_end(text: &[u8]) -> usize {
    let mut before = text.len();
    while let Some(end) = memrchr2(b'\n', b'\r', &text[..before]) {
        let is_pair = end > 0 && text[end] == b'\n' && text[end - 1] == b'\r';
        let begin = end - usize::from(is_pair);
        // The line break at `end` ends an empty line, and so an event, if another line break or the
        // start of the text is directly in front of it.
        if begin == 0 || matches!(text[begin - 1], b'\n' | b'\r') {
            return end + 1;
        }
        before = begin;
    }
    0
}

/// Returns the end of the current event in `text`, the next chunk. `last` is the previous chunk's
/// last byte, because the two line breaks that end an event may be split between chunks.
pub(super) fn end_after(last: u8, text: &[u8]) -> Option<usize> {
    let mut at = 0;
    if last == b'\r' && text.first() == Some(&b'\n') {
        // The chunk begins with the `\n` of a `\r\n` that is split between two chunks. Skip it: as
        // a line break of its own it would end the event too early.
        at = 1;
    }
    let mut is_line_empty = matches!(last, b'\n' | b'\r');
    loop {
        let length = memchr2(b'\n', b'\r', text.get(at..)?)?;
        let next = past_end(text, at + length);
        if is_line_empty && length == 0 {
            return Some(next);
        }
        is_line_empty = true;
        at = next;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_end_with_lf_crlf_or_cr() {
        let all: Vec<_> = lines(b"a\nb\r\nc\rd\n\n\r\n\re").collect();
        let expected: [&[u8]; 8] = [b"a", b"b", b"c", b"d", b"", b"", b"", b"e"];
        assert_eq!(all, expected);
        assert_eq!(lines(b"").count(), 0);
        assert_eq!(lines(b"a").count(), 1);
    }

    #[test]
    fn end_of_the_last_complete_event_is_found() {
        for (text, end) in [
            ("", 0),
            ("data: a", 0),
            ("data: a\n", 0),
            ("data: a\n\n", 9),
            ("data: a\r\n\r\n", 11),
            ("data: a\r\n\r", 10),
            ("data: a\r\r", 9),
            ("data: a\n\r\n", 10),
            ("data: a\r\n", 0),
            ("data: a\r\n\n", 10),
            ("data: a\n\ndata: b", 9),
            ("data: a\n\ndata: b\n", 9),
            ("data: a\r\n\r\ndata: b\r\nid: 1\r\n", 11),
            ("\n", 1),
            ("\ndata: b", 1),
        ] {
            assert_eq!(last_end(text.as_bytes()), end, "{text:?}");
        }
    }

    #[test]
    fn end_of_an_event_is_found_wherever_the_chunks_are_split() {
        for text in [
            "data: a\n\nx",
            "data: a\r\n\r\nx",
            "data: a\r\rx",
            "event: e\ndata: a\n\nx",
            "event: e\r\ndata: a\r\n\r\nx",
            ": c\r\ndata: a\n\r\nx",
        ] {
            let bytes = text.as_bytes();
            for at in 1..bytes.len() - 1 {
                let found = end_after(bytes[at - 1], &bytes[at..]).map(|end| at + end);
                // If the chunk is split inside the CRLF of the empty line, the CR in the first
                // chunk has ended the event already.
                let expected = match last_end(&bytes[..at]) {
                    0 => Some(bytes.len() - 1),
                    _ => None,
                };
                assert_eq!(found, expected, "{text:?} at {at}");
            }
        }
    }
}
