//! The only reader of the entry format. Consolidation, recovery, the report and `verify` use it, so
//! that all of them find the same records.
//!
//! An entry of another version is not read: the reader returns an error, as it does for an I/O
//! error, and the entry stays in place.

use std::io::{self, Read};
use std::path::{Path, PathBuf};

use uuid::Uuid;

use crate::disk::{Disk, DiskReader};
use crate::entry::{EntryKind, EntryName};
use crate::error::Error;
use crate::line::{self, Line};
use crate::lines::Lines;
use crate::record::{self, Record};

/// Maximum number of a record in an entry. No entry has as many bytes, so that a higher number is
/// damage. The bound keeps sums of line numbers from overflowing.
pub(crate) const MAX_RECORDS: u64 = 1 << 24;

/// Maximum length of a file with a single record. White space, which is removed, may make it longer
/// than a record.
const MAX_SINGLE_BYTES: u64 = 4 * record::MAX_BYTES as u64;

/// Reads the lines of an entry, one at a time.
pub(crate) struct EntryReader<R> {
    path: PathBuf,
    lines: Lines<R>,
    place: u64,
    /// Highest record number that was read so far. Later lines must have higher numbers.
    highest: u64,
}

/// One line of an entry's file: its bytes, its place in the file, and the result of parsing it.
pub(crate) struct EntryLine<'a> {
    /// Position of the line in the file, counted from 1.
    pub(crate) place: u64,
    /// Bytes of the line, with its newline if it has one.
    pub(crate) text: &'a [u8],
    /// Offset of the next line in the file.
    pub(crate) end: u64,
    /// Parsed line, or its damage. The numbers of records grow from line to line.
    pub(crate) content: Result<Line, &'static str>,
}

impl EntryLine<'_> {
    /// True if the line has its newline. A line without it may be incomplete.
    pub(crate) fn is_ended(&self) -> bool {
        self.text.ends_with(b"\n")
    }
}

impl<'a> EntryReader<DiskReader<'a>> {
    /// Opens an entry with many records. Returns `None` if it does not exist.
    pub(crate) fn open(disk: &'a dyn Disk, path: &Path) -> Result<Option<Self>, Error> {
        match DiskReader::open(disk, path) {
            Ok(file) => Ok(Some(Self::new(path, file))),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(Error::read(path, error)),
        }
    }
}

impl<R: Read> EntryReader<R> {
    /// Creates a reader of an open file. The path is only used in errors.
    pub(crate) fn new(path: &Path, file: R) -> Self {
        Self {
            path: path.to_owned(),
            lines: Lines::new(file),
            place: 0,
            highest: 0,
        }
    }

    pub(crate) fn next(&mut self) -> Result<Option<EntryLine<'_>>, Error> {
        let Self {
            path,
            lines,
            place,
            highest,
        } = self;
        let read = lines.next().map_err(|error| Error::read(path, error))?;
        let Some((text, end)) = read else {
            return Ok(None);
        };
        *place += 1;
        let content = match line::read(text.strip_suffix(b"\n").unwrap_or(text)) {
            Ok(Line::Entry { version, .. }) if version != line::VERSION => {
                return Err(Error::version(path, version, line::VERSION));
            }
            Ok(Line::Record { number, .. } | Line::Sealed { records: number })
                if number > MAX_RECORDS =>
            {
                Err("its record number or record count is above the maximum of an entry")
            }
            Ok(Line::Record { number, .. }) if number <= *highest => {
                Err("its record number is not higher than that of an earlier line")
            }
            Ok(Line::Record { number, record }) => {
                *highest = number;
                Ok(Line::Record { number, record })
            }
            content => content,
        };
        Ok(Some(EntryLine {
            place: *place,
            text,
            end,
            content,
        }))
    }
}

/// Content of a file with a single record.
pub(crate) enum SingleRecordFile {
    Record(Record),
    /// Content that is not a record, and the reason.
    Bad(Vec<u8>, String),
    /// The file is longer than a record can be, and is not read.
    TooLong(String),
}

impl SingleRecordFile {
    /// Reads a staged file with a single record, `{id}.json`. Returns `None` if it does not exist.
    pub(crate) fn read(disk: &dyn Disk, path: &Path, id: Uuid) -> Result<Option<Self>, Error> {
        let mut bytes = Vec::new();
        let read = DiskReader::open(disk, path)
            .and_then(|file| file.take(MAX_SINGLE_BYTES + 1).read_to_end(&mut bytes));
        match read {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            read => read.map_err(|error| Error::read(path, error))?,
        };
        if bytes.len() as u64 > MAX_SINGLE_BYTES {
            let why = format!("longer than {MAX_SINGLE_BYTES} bytes");
            return Ok(Some(Self::TooLong(why)));
        }
        let parsed = std::str::from_utf8(&bytes)
            .map_err(|error| error.to_string())
            .and_then(|text| Record::parse_with_id(text, id).map_err(|bad| bad.to_string()));
        Ok(Some(match parsed {
            Ok(record) => Self::Record(record),
            Err(why) => Self::Bad(bytes, why),
        }))
    }
}

/// Reads an entry as consolidation will read it, and returns its length. Returns `None` if the
/// entry does not exist.
///
/// Reading the whole entry finds an I/O error in its middle while the entry can still be left out
/// of the snapshot. Consolidation then reads the content from the page cache.
pub(crate) fn probe(
    disk: &dyn Disk,
    staging: &Path,
    name: EntryName,
) -> Result<Option<u64>, Error> {
    let path = name.path_in(staging);
    if name.kind == EntryKind::Single {
        let single = SingleRecordFile::read(disk, &path, name.id)?;
        return Ok(single.map(|single| match single {
            SingleRecordFile::Record(record) => record.json().len() as u64,
            SingleRecordFile::Bad(bytes, _) => bytes.len() as u64,
            SingleRecordFile::TooLong(_) => MAX_SINGLE_BYTES,
        }));
    }
    let Some(mut entry) = EntryReader::open(disk, &path)? else {
        return Ok(None);
    };
    // Read the first line with its version: consolidation must leave an entry of another version in
    // place.
    entry.next()?;
    let rest = entry.lines.skip_to_end();
    rest.map(Some).map_err(|error| Error::read(&path, error))
}
