//! Reading a file line by line, in bounded memory.

use std::io::{self, BufRead, BufReader, Read};

use crate::record;

/// Maximum length of a line of an entry: a record, its id, its number and its checksum. A longer
/// line is read in pieces, to bound the memory.
const MAX_LENGTH: u64 = record::MAX_BYTES as u64 + 1024;

/// Reader of lines. A line that is too long is returned in pieces, none of which has a valid
/// checksum.
pub(crate) struct Lines<R> {
    reader: BufReader<R>,
    text: Vec<u8>,
    /// Offset of the end of the last line that was read.
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

    /// Returns the next line, with its newline if it has one, and the offset of its end. `None` at
    /// the end of the file.
    pub(crate) fn next(&mut self) -> io::Result<Option<(&[u8], u64)>> {
        self.text.clear();
        let read = (&mut self.reader)
            .take(MAX_LENGTH)
            .read_until(b'\n', &mut self.text)?;
        self.end += read as u64;
        Ok((read > 0).then_some((&*self.text, self.end)))
    }

    /// Reads the rest of the file without dividing it into lines, to find I/O errors. Returns the
    /// length of the file.
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
