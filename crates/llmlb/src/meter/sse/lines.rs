//! Where lines and events of a stream end. A line ends with `\n`, `\r\n` or `\r`; an event ends
//! with an empty line.

use memchr::{memchr2, memrchr2};

/// The lines of a text, without what ends them. The last one need not be ended.
pub(super) struct Lines<'a> {
    rest: &'a [u8],
}

pub(super) fn lines(text: &[u8]) -> Lines<'_> {
    Lines { rest: text }
}

impl<'a> Iterator for Lines<'a> {
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

impl Lines<'_> {
    /// How many bytes are left.
    pub(super) fn left(&self) -> usize {
        self.rest.len()
    }
}

/// Whether all lines, of which the last may not have come to its end, are such as events have.
pub(super) fn is_an_event(text: &[u8]) -> bool {
    const NAMES: [&[u8]; 6] = [b"data", b"event", b"id", b"retry", b":", b"\xEF\xBB\xBF"];
    lines(text).all(|line| {
        let mut names = NAMES.iter();
        names.any(|name| line.starts_with(name) || name.starts_with(line))
    })
}

/// Whether a stream of events may begin with this, which may be no more than its first byte.
pub(crate) fn may_begin(text: &[u8]) -> bool {
    const NAMES: [&[u8]; 5] = [b"data:", b"event:", b"id:", b"retry:", b":"];
    let mut names = NAMES.iter();
    names.any(|name| text.starts_with(name) || name.starts_with(text))
}

/// Where the next line begins, given where one ends.
fn past_end(text: &[u8], end: usize) -> usize {
    match text.get(end..) {
        Some([b'\r', b'\n', ..]) => end + 2,
        Some([_, ..]) => end + 1,
        _ => end,
    }
}

/// Where the last whole event ends in a text that begins with an event; 0 if none does.
pub(super) fn last_end(text: &[u8]) -> usize {
    let mut before = text.len();
    while let Some(end) = memrchr2(b'\n', b'\r', &text[..before]) {
        let is_pair = end > 0 && text[end] == b'\n' && text[end - 1] == b'\r';
        let begin = end - usize::from(is_pair);
        // The line that ends here is empty if another one ends, or nothing is, before it.
        if begin == 0 || matches!(text[begin - 1], b'\n' | b'\r') {
            return end + 1;
        }
        before = begin;
    }
    0
}

/// Where an event ends in `text`, of which the bytes so far ended with `last`.
pub(super) fn end_after(last: u8, text: &[u8]) -> Option<usize> {
    let mut at = 0;
    if last == b'\r' && text.first() == Some(&b'\n') {
        // The second half of a line's end.
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
    fn lines_end_in_three_ways() {
        let all: Vec<_> = lines(b"a\nb\r\nc\rd\n\n\r\n\re").collect();
        let expected: [&[u8]; 8] = [b"a", b"b", b"c", b"d", b"", b"", b"", b"e"];
        assert_eq!(all, expected);
        assert_eq!(lines(b"").count(), 0);
        assert_eq!(lines(b"a").count(), 1);
    }

    #[test]
    fn the_last_whole_event_is_found() {
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
    fn the_end_of_an_event_is_found_from_every_point_in_it() {
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
                // What was cut in the midst of its end has ended before.
                let expected = match last_end(&bytes[..at]) {
                    0 => Some(bytes.len() - 1),
                    _ => None,
                };
                assert_eq!(found, expected, "{text:?} at {at}");
            }
        }
    }
}
