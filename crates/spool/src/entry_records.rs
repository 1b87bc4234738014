//! The records of an entry, as consolidation takes them. What is not good is set aside.

use std::path::{Path, PathBuf};

use crate::data_dir::DataDir;
use crate::disk::{Disk, DiskReader};
use crate::entry::{EntryKind, EntryName};
use crate::entry_reader::{EntryReader, SingleRecordFile};
use crate::error::Error;
use crate::line::Line;
use crate::quarantine::{QuarantineBuffer, move_aside, set_aside};
use crate::record::Record;

/// Reads an entry record by record.
pub(crate) struct EntryRecords<'a> {
    disk: &'a dyn Disk,
    data: &'a DataDir,
    name: &'a str,
    path: PathBuf,
    source: Source<'a>,
    /// Which line was read last.
    place: u64,
    /// The highest number that was seen, or that the seal speaks of.
    highest: u64,
    /// The last line is the seal; of a single record: it is good.
    is_whole: bool,
    /// Which lines no good record came of: the first and the last of each range.
    aside: Vec<[u64; 2]>,
    /// Those lines.
    pile: QuarantineBuffer,
}

enum Source<'a> {
    /// Until it is taken.
    Single(Option<SingleRecordFile>),
    Lines(EntryReader<DiskReader<'a>>),
}

impl<'a> EntryRecords<'a> {
    /// `None` if there is no such entry.
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
            pile: QuarantineBuffer::new(format!("{name}.lines")),
        }))
    }

    /// The next good record, with the number of its line.
    pub(crate) fn next(&mut self) -> Result<Option<(u64, Record)>, Error> {
        if let Source::Single(single) = &mut self.source {
            return match single.take() {
                Some(single) => self.take_single(single),
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
                    self.skip_to(number - 1);
                    self.highest = number;
                    return Ok(Some((number, record)));
                }
                Ok(Line::Entry { .. }) => {}
                Ok(Line::Sealed { records }) => {
                    self.is_whole = true;
                    self.skip_to(records);
                }
                Err(_) if is_first && !has_a_good_line(self.disk, &self.path)? => {
                    let why = "it is not an entry, although it is called one; to stage lines of \
                               JSON, use `llmlb usage stage` or `Staging`";
                    move_aside(self.disk, &self.path, &self.data.failed, self.name, why)?;
                    return Ok(None);
                }
                Err(why) => {
                    self.pile.add(line.place, line.text, why);
                    if self.pile.is_full() {
                        self.pile.set_aside(self.disk, &self.data.failed)?;
                    }
                }
            }
        }
    }

    fn take_single(&mut self, single: SingleRecordFile) -> Result<Option<(u64, Record)>, Error> {
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
                move_aside(disk, &self.path, failed, self.name, &why)?
            }
        }
        self.aside.push([1, 1]);
        Ok(None)
    }

    /// Sets a record aside whose line was good.
    pub(crate) fn set_aside(&mut self, number: u64, record: &Record, why: &str) {
        self.aside.push([number, number]);
        self.pile.add(self.place, record.json().as_bytes(), why);
    }

    /// No good record has these numbers.
    fn skip_to(&mut self, number: u64) {
        if number > self.highest {
            self.aside.push([self.highest + 1, number]);
            self.highest = number;
        }
    }

    /// True if nothing is missing at the end of what was read.
    pub(crate) fn is_whole(&self) -> bool {
        self.is_whole
    }

    /// How many lines the entry has, and which of them no good record came of; those are set aside.
    pub(crate) fn account(mut self) -> Result<(u64, Vec<[u64; 2]>), Error> {
        self.pile.set_aside(self.disk, &self.data.failed)?;
        Ok((self.highest, self.aside))
    }
}

/// True if any line is one of an entry: one of ours whose first line is damaged still has good ones.
fn has_a_good_line(disk: &dyn Disk, path: &Path) -> Result<bool, Error> {
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
