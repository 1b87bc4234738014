//! Line reader for `llmlb usage stage`, which bounds the memory of an overlong line.

use std::io::{self, BufRead, BufReader, Read};

/// Maximum number of bytes of one read of the input. The records of one read are synced to disk
/// together.
const BUFFER: usize = 256 * 1024;

/// Line of the input of `llmlb usage stage`, without its line feed.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum InputLine {
    Whole(Vec<u8>),
    /// The line was longer than allowed. It was skipped without being held in memory.
    TooLong,
}

/// Reader of lines.
pub(super) struct LineReader<R> {
    reader: BufReader<R>,
    longest: usize,
}

impl<R: Read> LineReader<R> {
    pub(super) fn new(reader: R, longest: usize) -> Self {
        Self {
            reader: BufReader::with_capacity(BUFFER, reader),
            longest,
        }
    }

    /// Waits for the next line of the input. `None` at the end of the input.
    pub(super) fn next(&mut self) -> io::Result<Option<InputLine>> {
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
            (true, true) => Some(InputLine::TooLong),
            (true, false) => Some(InputLine::Whole(line)),
        })
    }

    /// True if the next line is buffered in memory, so that `next` does not wait for input.
    pub(super) fn is_ready(&self) -> bool {
        self.reader.buffer().contains(&b'\n')
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Input of a test, of which each read returns one of these pieces.
    struct Pieces(Vec<&'static str>);

    impl Read for Pieces {
        fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
            if self.0.is_empty() {
                return Ok(0);
            }
            self.0.remove(0).as_bytes().read(buffer)
        }
    }

    fn all(pieces: &[&'static str], longest: usize) -> Vec<InputLine> {
        let mut lines = LineReader::new(Pieces(pieces.to_vec()), longest);
        let mut found = Vec::new();
        while let Some(line) = lines.next().unwrap() {
            found.push(line);
        }
        found
    }

    fn whole(text: &str) -> InputLine {
        InputLine::Whole(text.as_bytes().to_vec())
    }

    #[test]
    fn lines_do_not_depend_on_how_the_input_is_split() {
        let expected = [whole("ab"), whole(""), whole("cd\r"), whole("e")];
        assert_eq!(all(&["ab\n\ncd\r\ne"], 9), expected);
        assert_eq!(all(&["a", "b", "\n", "\nc", "d\r\n", "e"], 9), expected);
        assert_eq!(all(&[], 9), []);
        assert_eq!(all(&["\n"], 9), [whole("")]);
    }

    #[test]
    fn overlong_line_is_skipped_and_the_next_is_read() {
        let expected = [InputLine::TooLong, whole("abc"), InputLine::TooLong];
        assert_eq!(all(&["abcd\nabc\nabcd"], 3), expected);
        assert_eq!(all(&["ab", "cd", "\nabc", "\nab", "cd"], 3), expected);
    }

    #[test]
    fn is_ready_is_true_only_for_a_complete_buffered_line() {
        let mut lines = LineReader::new(Pieces(vec!["a\nb\nc", "\n"]), 9);
        assert!(!lines.is_ready());
        lines.next().unwrap();
        assert!(lines.is_ready());
        lines.next().unwrap();
        assert!(!lines.is_ready(), "only a part of the line is buffered");
        assert_eq!(lines.next().unwrap(), Some(whole("c")));
    }
}
