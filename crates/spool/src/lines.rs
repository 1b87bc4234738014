//! The lines of a file, one at a time, however long the file is.

use std::io::{self, BufRead, BufReader, Read};

use crate::record;

/// The longest line that can be one of ours: a record, its id, its number and its checksum.
const LONGEST: u64 = record::MAX_BYTES as u64 + 1024;

/// Reads lines. One that is too long comes in pieces, none of which is a good line.
pub(crate) struct Lines<R> {
    reader: BufReader<R>,
    text: Vec<u8>,
    /// Where the last line ends in the file.
    end: u64,
}

impl<R: Read> Lines<R> {
    pub(crate) fn new(file: R) -> Self {
        Self {
            reader: BufReader::with_capacity(64 * 1024, file),
            text: Vec::new(),
            end: 0,
        }
    }

    /// The next line with its end, if it has one, and where it ends in the file. `None` at the end of
    /// the file.
    pub(crate) fn next(&mut self) -> io::Result<Option<(&[u8], u64)>> {
        self.text.clear();
        let read = (&mut self.reader)
            .take(LONGEST)
            .read_until(b'\n', &mut self.text)?;
        self.end += read as u64;
        Ok((read > 0).then_some((&*self.text, self.end)))
    }

    /// Reads the rest of the file, and returns its length.
    pub(crate) fn skip_to_end(&mut self) -> io::Result<u64> {
        loop {
            let read = match self.reader.fill_buf() {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                bytes => bytes?.len(),
            };
            if read == 0 {
                return Ok(self.end);
            }
            self.reader.consume(read);
            self.end += read as u64;
        }
    }
}
