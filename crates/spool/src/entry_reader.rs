//! The only reader of the entry format: consolidation, recovery, the report and `verify` read through
//! it, so that all of them take the same lines for records.
//!
//! An entry that cannot be read, or is of another version, is an error, and is left where it is.

use std::io::{self, Read};
use std::path::{Path, PathBuf};

use uuid::Uuid;

use crate::disk::{Disk, DiskReader};
use crate::entry::{EntryKind, EntryName};
use crate::error::Error;
use crate::line::{self, Line};
use crate::lines::Lines;
use crate::record::{self, Record};

/// Maximum number of a record: no writer makes an entry with more bytes than this, let alone lines.
/// A larger number was made up, and would make sums overflow.
pub(crate) const MAX_RECORDS: u64 = 1 << 24;

/// Maximum length of a file with a single record. White space may be taken out of it.
const LONGEST_SINGLE: u64 = 4 * record::MAX_BYTES as u64;

/// Reads the lines of an entry, one at a time.
pub(crate) struct EntryReader<R> {
    path: PathBuf,
    lines: Lines<R>,
    place: u64,
    /// The highest number of a record so far.
    highest: u64,
}

/// A line of an entry.
pub(crate) struct EntryLine<'a> {
    /// Which line of the file it is, counted from 1.
    pub(crate) place: u64,
    /// As it is in the file, with its end if it has one.
    pub(crate) text: &'a [u8],
    /// Where the next line begins.
    pub(crate) end: u64,
    /// What it says, or why it says nothing. Numbers of records only grow, and are bounded.
    pub(crate) content: Result<Line, &'static str>,
}

impl EntryLine<'_> {
    /// True if the line has its end: otherwise its writer may have been interrupted.
    pub(crate) fn is_ended(&self) -> bool {
        self.text.ends_with(b"\n")
    }
}

impl<'a> EntryReader<DiskReader<'a>> {
    /// Opens an entry with many records. `None`: it is gone.
    pub(crate) fn open(disk: &'a dyn Disk, path: &Path) -> Result<Option<Self>, Error> {
        match DiskReader::open(disk, path) {
            Ok(file) => Ok(Some(Self::new(path, file))),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(Error::read(path, error)),
        }
    }
}

impl<R: Read> EntryReader<R> {
    /// Reads what is in a file. The path is for messages.
    pub(crate) fn new(path: &Path, file: R) -> Self {
        Self {
            path: path.to_owned(),
            lines: Lines::new(file),
            place: 0,
            highest: 0,
        }
    }

    /// The next line; `None` at the end of the file.
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
                Err("its number is larger than that of any record")
            }
            Ok(Line::Record { number, .. }) if number <= *highest => Err("it is out of order"),
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
    /// No record, and why.
    Bad(Vec<u8>, String),
    /// More than a record can have. It is not read.
    TooLong(String),
}

impl SingleRecordFile {
    /// Reads `{id}.json`. `None`: it is gone.
    pub(crate) fn read(disk: &dyn Disk, path: &Path, id: Uuid) -> Result<Option<Self>, Error> {
        let mut bytes = Vec::new();
        let read = DiskReader::open(disk, path)
            .and_then(|file| file.take(LONGEST_SINGLE + 1).read_to_end(&mut bytes));
        match read {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            read => read.map_err(|error| Error::read(path, error))?,
        };
        if bytes.len() as u64 > LONGEST_SINGLE {
            let why = format!("it is longer than {LONGEST_SINGLE} bytes");
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

/// Reads all that consolidation will read of an entry, and returns how much that is. `None`: it is
/// gone.
///
/// An error in the middle of an entry is thus found before the first batch is written. What was just
/// read is in the kernel's memory: reading it again costs little.
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
            SingleRecordFile::TooLong(_) => LONGEST_SINGLE,
        }));
    }
    let Some(mut entry) = EntryReader::open(disk, &path)? else {
        return Ok(None);
    };
    // The first line says the version.
    entry.next()?;
    let rest = entry.lines.skip_to_end();
    rest.map(Some).map_err(|error| Error::read(&path, error))
}
