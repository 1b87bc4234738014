//! The records of an entry, one at a time. What is not good is set aside.

use std::fs::File;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};

use uuid::Uuid;

use crate::data_dir::DataDir;
use crate::disk::Disk;
use crate::entry::{Kind, Name};
use crate::error::Error;
use crate::line::{self, Line};
use crate::lines::Lines;
use crate::quarantine::{Pile, move_aside, set_aside};
use crate::record::{self, Record};

/// Reads an entry.
pub(crate) struct EntryReader<'a> {
    disk: &'a dyn Disk,
    data: &'a DataDir,
    name: &'a str,
    path: PathBuf,
    source: Source,
    /// The highest number that was seen, or that the seal speaks of.
    highest: u64,
    /// Which lines no good record came of: the first and the last of each range.
    aside: Vec<[u64; 2]>,
    /// Those lines.
    pile: Pile,
}

enum Source {
    Single(Option<(Uuid, File)>),
    Lines { lines: Lines<File>, place: u64 },
}

impl<'a> EntryReader<'a> {
    /// `None` if there is no such entry.
    pub(crate) fn open(
        disk: &'a dyn Disk,
        data: &'a DataDir,
        name: &'a str,
    ) -> Result<Option<Self>, Error> {
        let path = data.staging.join(name);
        let file = match File::open(&path) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(Error::read(&path, error)),
        };
        let source = match Name::parse(name.as_ref()) {
            Some(Name {
                id,
                kind: Kind::Single,
            }) => Source::Single(Some((id, file))),
            _ => Source::Lines {
                lines: Lines::new(file),
                place: 0,
            },
        };
        Ok(Some(Self {
            disk,
            data,
            name,
            path,
            source,
            highest: 0,
            aside: Vec::new(),
            pile: Pile::new(format!("{name}.lines")),
        }))
    }

    /// The next good record, with the number of its line.
    pub(crate) fn next(&mut self) -> Result<Option<(u64, Record)>, Error> {
        if let Source::Single(single) = &mut self.source {
            return match single.take() {
                Some((id, file)) => self.read_single(id, file),
                None => Ok(None),
            };
        }
        self.next_line()
    }

    fn next_line(&mut self) -> Result<Option<(u64, Record)>, Error> {
        loop {
            let Source::Lines { lines, place } = &mut self.source else {
                return Ok(None);
            };
            let read = lines.next();
            let Some(text) = read.map_err(|error| Error::read(&self.path, error))? else {
                return Ok(None);
            };
            *place += 1;
            if *place == 1
                && let Some(why) = foreign(text, &self.path)?
            {
                move_aside(self.disk, &self.path, &self.data.failed, self.name, why)?;
                return Ok(None);
            }
            let why = match line::read(text.strip_suffix(b"\n").unwrap_or(text)) {
                Ok(Line::Record { number, .. }) if number <= self.highest => "it is out of order",
                Ok(Line::Record { number, record }) => {
                    self.skip_to(number - 1);
                    self.highest = number;
                    return Ok(Some((number, record)));
                }
                Ok(Line::Entry { .. }) => continue,
                Ok(Line::Sealed { records }) => {
                    self.skip_to(records);
                    continue;
                }
                Err(why) => why,
            };
            self.pile.add(*place, text, why);
            if self.pile.is_full() {
                self.pile.set_aside(self.disk, &self.data.failed)?;
            }
        }
    }

    fn read_single(&mut self, id: Uuid, file: File) -> Result<Option<(u64, Record)>, Error> {
        self.skip_to(1);
        let mut bytes = Vec::new();
        // White space may be taken out of it.
        let most = 4 * record::MOST_BYTES as u64;
        file.take(most + 1)
            .read_to_end(&mut bytes)
            .map_err(|error| Error::read(&self.path, error))?;
        if bytes.len() as u64 > most {
            let why = format!("it is longer than {most} bytes");
            move_aside(self.disk, &self.path, &self.data.failed, self.name, &why)?;
            return Ok(None);
        }
        let parsed = std::str::from_utf8(&bytes)
            .map_err(|error| error.to_string())
            .and_then(|text| Record::parse_with_id(text, id).map_err(|bad| bad.to_string()));
        match parsed {
            Ok(record) => {
                self.aside.clear();
                Ok(Some((1, record)))
            }
            Err(why) => {
                set_aside(self.disk, &self.data.failed, self.name, &bytes, &why)?;
                Ok(None)
            }
        }
    }

    /// Sets a record aside whose line was good.
    pub(crate) fn set_aside(&mut self, number: u64, record: &Record, why: &str) {
        self.aside.push([number, number]);
        let place = match self.source {
            Source::Single(_) => 1,
            Source::Lines { place, .. } => place,
        };
        self.pile.add(place, record.json().as_bytes(), why);
    }

    /// No good record has these numbers.
    fn skip_to(&mut self, number: u64) {
        if number > self.highest {
            self.aside.push([self.highest + 1, number]);
            self.highest = number;
        }
    }

    /// How many lines the entry has, and which of them no good record came of; those are set aside.
    pub(crate) fn account(mut self) -> Result<(u64, Vec<[u64; 2]>), Error> {
        self.pile.set_aside(self.disk, &self.data.failed)?;
        Ok((self.highest, self.aside))
    }
}

/// Why a file that is called an entry is none that can be read, by its first line. One of ours whose
/// first line is damaged still has good ones.
fn foreign(first: &[u8], path: &Path) -> Result<Option<&'static str>, Error> {
    let failed = |error| Error::read(path, error);
    match line::read(first.strip_suffix(b"\n").unwrap_or(first)) {
        Ok(Line::Entry { version, .. }) if version == line::VERSION => return Ok(None),
        Ok(Line::Entry { .. }) => return Ok(Some(UNKNOWN_VERSION)),
        Ok(_) => return Ok(None),
        Err(_) => {}
    }
    let mut lines = Lines::new(File::open(path).map_err(failed)?);
    while let Some(text) = lines.next().map_err(failed)? {
        if line::read(text.strip_suffix(b"\n").unwrap_or(text)).is_ok() {
            return Ok(None);
        }
    }
    Ok(Some(
        "it is not an entry, although it is called one; to stage lines of JSON, use \
         `llmlb usage stage` or `Staging`",
    ))
}

pub(crate) const UNKNOWN_VERSION: &str = "it is of a version that this program does not know";
