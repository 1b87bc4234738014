//! The records of an entry as consolidation reads them. Damaged lines go to `failed/`.

use std::path::{Path, PathBuf};

use crate::data_dir::DataDir;
use crate::disk::{Disk, DiskReader};
use crate::entry::{EntryKind, EntryName};
use crate::entry_reader::{EntryReader, SingleRecordFile};
use crate::error::Error;
use crate::line::Line;
use crate::quarantine::{QuarantineBuffer, move_aside, set_aside};
use crate::record::Record;

/// Reader of the records of a staged entry, one at a time, so that memory stays bounded. Damaged
/// lines go to `failed/`.
pub(crate) struct EntryRecords<'a> {
    disk: &'a dyn Disk,
    data: &'a DataDir,
    name: &'a str,
    path: PathBuf,
    source: Source<'a>,
    /// Number of the line in the file that was read last. The reason for a rejected record names
    /// this line.
    place: u64,
    /// Highest record number so far, also according to the seal. Numbers that no valid record has
    /// are added to `aside`.
    highest: u64,
    /// True if the entry is not truncated: the seal (the last line of an entry) was read, or the
    /// record of a single-record file is valid.
    is_whole: bool,
    /// Ranges of record numbers without a valid record: the first and the last of each.
    aside: Vec<[u64; 2]>,
    /// Damaged lines of the entry that are not in `failed/` yet.
    quarantine: QuarantineBuffer,
}

enum Source<'a> {
    /// File with a single record; `None` once the record was returned.
    Single(Option<SingleRecordFile>),
    Lines(EntryReader<DiskReader<'a>>),
}

impl<'a> EntryRecords<'a> {
    /// Opens an entry of the staging directory. Returns `None` if the entry does not exist.
    pub(crate) fn open(
        disk: &'a dyn Disk,
        data: &'a DataDir,
        name: &'a str,
    ) -> Result<Option<Self>, Error> {
        let path = data.staging.join(name);
        let source = match EntryName::parse(name.as_ref()) {
            Some(EntryName {
                id,
                kind: EntryKind::Single,
            }) => {
                SingleRecordFile::read(disk, &path, id)?.map(|single| Source::Single(Some(single)))
            }
            _ => EntryReader::open(disk, &path)?.map(Source::Lines),
        };
        Ok(source.map(|source| Self {
            disk,
            data,
            name,
            path,
            source,
            place: 0,
            highest: 0,
            is_whole: false,
            aside: Vec::new(),
            quarantine: QuarantineBuffer::new(format!("{name}.lines")),
        }))
    }

    /// Returns the next valid record and its number.
    pub(crate) fn next(&mut self) -> Result<Option<(u64, Record)>, Error> {
        if let Source::Single(single) = &mut self.source {
            return match single.take() {
                Some(single) => self.read_single(single),
                None => Ok(None),
            };
        }
        self.next_line()
    }

    fn next_line(&mut self) -> Result<Option<(u64, Record)>, Error> {
        loop {
            let Source::Lines(lines) = &mut self.source else {
                return Ok(None);
            };
            let Some(line) = lines.next()? else {
                return Ok(None);
            };
            self.place = line.place;
            let is_first = line.place == 1;
            match line.content {
                Ok(Line::Record { number, record }) => {
                    self.add_gap_up_to(number - 1);
                    self.highest = number;
                    return Ok(Some((number, record)));
                }
                Ok(Line::Entry { .. }) => {}
                Ok(Line::Sealed { records }) => {
                    self.is_whole = true;
                    self.add_gap_up_to(records);
                }
                Err(_) if is_first && !has_valid_line(self.disk, &self.path)? => {
                    let why = "the file has the name of an entry, but is not one; lines of JSON must \
                               be staged, not copied into the directory";
                    move_aside(self.disk, &self.path, &self.data.failed, self.name, why)?;
                    return Ok(None);
                }
                Err(why) => {
                    self.quarantine.add(line.place, line.text, why);
                    if self.quarantine.is_full() {
                        self.quarantine.set_aside(self.disk, &self.data.failed)?;
                    }
                }
            }
        }
    }

    fn read_single(&mut self, single: SingleRecordFile) -> Result<Option<(u64, Record)>, Error> {
        let (disk, failed) = (self.disk, &self.data.failed);
        self.place = 1;
        self.highest = 1;
        match single {
            SingleRecordFile::Record(record) => {
                self.is_whole = true;
                return Ok(Some((1, record)));
            }
            SingleRecordFile::Bad(bytes, why) => set_aside(disk, failed, self.name, &bytes, &why)?,
            SingleRecordFile::TooLong(why) => {
                move_aside(disk, &self.path, failed, self.name, &why)?;
            }
        }
        self.aside.push([1, 1]);
        Ok(None)
    }

    /// Adds a record to the damaged lines for `failed/`: consolidation rejects the record, although
    /// its line is intact.
    pub(crate) fn set_aside(&mut self, number: u64, record: &Record, why: &str) {
        self.aside.push([number, number]);
        self.quarantine
            .add(self.place, record.json().as_bytes(), why);
    }

    /// Adds the record numbers after `highest` up to `number` to `aside`, since no valid record has
    /// these numbers. Otherwise the lines of the entry would not add up in the journal.
    fn add_gap_up_to(&mut self, number: u64) {
        if number > self.highest {
            self.aside.push([self.highest + 1, number]);
            self.highest = number;
        }
    }

    /// True if the end of the entry is not missing. Valid once all records were read.
    pub(crate) fn is_whole(&self) -> bool {
        self.is_whole
    }

    /// Moves the damaged lines to `failed/`. Returns the number of records that the entry had, and
    /// the ranges of numbers without a valid record.
    pub(crate) fn account(mut self) -> Result<(u64, Vec<[u64; 2]>), Error> {
        self.quarantine.set_aside(self.disk, &self.data.failed)?;
        Ok((self.highest, self.aside))
    }
}

/// True if any line is intact. A file without intact lines was not written by spool.
fn has_valid_line(disk: &dyn Disk, path: &Path) -> Result<bool, Error> {
    let Some(mut lines) = EntryReader::open(disk, path)? else {
        return Ok(false);
    };
    while let Some(line) = lines.next()? {
        if line.content.is_ok() {
            return Ok(true);
        }
    }
    Ok(false)
}
