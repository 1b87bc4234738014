//! Lines of any input, in bounded memory.

use std::io::{self, BufRead, BufReader, Read};

/// As much is read at once; so many lines can share a sync.
const BUFFER: usize = 256 * 1024;

/// A line without its end.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Line {
    Whole(Vec<u8>),
    /// It was longer than allowed, and skipped.
    TooLong,
}

pub(super) struct Lines<R> {
    reader: BufReader<R>,
    longest: usize,
}

impl<R: Read> Lines<R> {
    pub(super) fn new(reader: R, longest: usize) -> Self {
        Self {
            reader: BufReader::with_capacity(BUFFER, reader),
            longest,
        }
    }

    /// The next line; waits for it. `None`: there are no more.
    pub(super) fn next(&mut self) -> io::Result<Option<Line>> {
        let mut line = Vec::new();
        let (mut has_begun, mut is_too_long) = (false, false);
        loop {
            let buffer = match self.reader.fill_buf() {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                other => other?,
            };
            let end = buffer.iter().position(|byte| *byte == b'\n');
            let part = &buffer[..end.unwrap_or(buffer.len())];
            let used = part.len() + usize::from(end.is_some());
            has_begun |= used > 0;
            is_too_long |= line.len() + part.len() > self.longest;
            if is_too_long {
                line = Vec::new();
            } else {
                line.extend_from_slice(part);
            }
            self.reader.consume(used);
            if end.is_some() || used == 0 {
                break;
            }
        }
        Ok(match (has_begun, is_too_long) {
            (false, _) => None,
            (true, true) => Some(Line::TooLong),
            (true, false) => Some(Line::Whole(line)),
        })
    }

    /// Whether the next line is here already.
    pub(super) fn is_ready(&self) -> bool {
        self.reader.buffer().contains(&b'\n')
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Gives what it has in these pieces.
    struct Pieces(Vec<&'static str>);

    impl Read for Pieces {
        fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
            if self.0.is_empty() {
                return Ok(0);
            }
            self.0.remove(0).as_bytes().read(buffer)
        }
    }

    fn all(pieces: &[&'static str], longest: usize) -> Vec<Line> {
        let mut lines = Lines::new(Pieces(pieces.to_vec()), longest);
        let mut found = Vec::new();
        while let Some(line) = lines.next().unwrap() {
            found.push(line);
        }
        found
    }

    fn whole(text: &str) -> Line {
        Line::Whole(text.as_bytes().to_vec())
    }

    #[test]
    fn lines_are_the_same_however_they_come() {
        let expected = [whole("ab"), whole(""), whole("cd\r"), whole("e")];
        assert_eq!(all(&["ab\n\ncd\r\ne"], 9), expected);
        assert_eq!(all(&["a", "b", "\n", "\nc", "d\r\n", "e"], 9), expected);
        assert_eq!(all(&[], 9), []);
        assert_eq!(all(&["\n"], 9), [whole("")]);
    }

    #[test]
    fn a_line_that_is_too_long_is_skipped_and_the_next_is_read() {
        let expected = [Line::TooLong, whole("abc"), Line::TooLong];
        assert_eq!(all(&["abcd\nabc\nabcd"], 3), expected);
        assert_eq!(all(&["ab", "cd", "\nabc", "\nab", "cd"], 3), expected);
    }

    #[test]
    fn it_is_known_whether_a_line_must_be_waited_for() {
        let mut lines = Lines::new(Pieces(vec!["a\nb\nc", "\n"]), 9);
        assert!(!lines.is_ready());
        lines.next().unwrap();
        assert!(lines.is_ready());
        lines.next().unwrap();
        assert!(!lines.is_ready(), "only a part of it is here");
        assert_eq!(lines.next().unwrap(), Some(whole("c")));
    }
}
