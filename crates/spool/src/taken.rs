//! The book of what was consolidated: every entry with its lines, and the ids of its records.
//!
//! ```text
//! {"snapshot":"<uuid>","entry":"<uuid>.jsonl","lines":3,"aside":[[2,2]],"records":2,"ids":["<uuid> <crc>",..],"crc":..}
//! ```
//!
//! The ids keep a record that is staged again, after an error or a crash, from being counted again.
//! That holds for at least the last [`WINDOW`] records.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::book::{Book, Read, Title};
use crate::data_dir::DataDir;
use crate::disk::Disk;
use crate::error::Error;
use crate::record::Record;

/// How many ids one generation of the book has.
pub(crate) const WINDOW: u64 = 250_000;

/// An entry that was consolidated.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Taken {
    /// The set it was consolidated with.
    pub(crate) snapshot: Uuid,
    pub(crate) entry: String,
    /// How many it has; they are numbered from 1.
    pub(crate) lines: u64,
    /// Those that are records which had been taken before.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) repeated: Vec<u64>,
    /// Those that no good record came of, in ranges: the first and the last of each.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) aside: Vec<[u64; 2]>,
    /// How many records went into batches.
    pub(crate) records: u64,
    /// Their ids and checksums; none if the disk was too full for them.
    pub(crate) ids: Vec<String>,
}

/// What the events of a book add up to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Sums {
    pub(crate) entries: u64,
    /// That went into batches.
    pub(crate) records: u64,
    pub(crate) repeated: u64,
    pub(crate) aside: u64,
}

/// The book as the consolidator keeps it.
#[derive(Debug)]
pub(crate) struct TakenBook {
    book: Book,
    sums: Sums,
    /// In this generation.
    ids: u64,
    /// What was taken with earlier snapshots: in this generation ...
    known: HashMap<Uuid, u32>,
    /// ... and in the one before it.
    before: HashMap<Uuid, u32>,
    /// The entries that are in the book with this snapshot.
    current: HashSet<String>,
}

/// Whether a record was seen before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Seen {
    Never,
    /// The same record.
    Same,
    /// Another record with the same id.
    Other,
}

impl Taken {
    pub(crate) fn new(snapshot: Uuid, entry: &str) -> Self {
        Self {
            snapshot,
            entry: entry.to_owned(),
            lines: 0,
            repeated: Vec::new(),
            aside: Vec::new(),
            records: 0,
            ids: Vec::new(),
        }
    }
}

impl Sums {
    pub(crate) fn add(&mut self, taken: &Taken) {
        self.entries += 1;
        self.records += taken.records;
        self.repeated += taken.repeated.len() as u64;
        let lines = taken.aside.iter().map(|[from, to]| to - from + 1);
        self.aside += lines.sum::<u64>();
    }
}

impl TakenBook {
    /// Opens the book to add this snapshot to it. If a crash interrupted that, it is gone on with:
    /// what was known is what was known before it.
    pub(crate) fn open(
        disk: &Arc<dyn Disk>,
        data: &DataDir,
        snapshot: Uuid,
    ) -> Result<Self, Error> {
        let book = Book::open::<Sums>(disk, data, Title::Taken)?;
        let (mut sums, mut ids) = (Sums::default(), 0);
        let (mut known, mut before, mut current) = (HashMap::new(), HashMap::new(), HashSet::new());
        Title::Taken.read(data, &mut |spot, read| match read {
            Read::Head(all) => {
                (sums, ids) = (all, 0);
                before = std::mem::take(&mut known);
            }
            Read::Event(text) => {
                let Ok(taken) = serde_json::from_str::<Taken>(text) else {
                    tracing::warn!(path = %spot.path.display(), line = spot.line, "not an entry");
                    return;
                };
                sums.add(&taken);
                ids += taken.ids.len() as u64;
                if taken.snapshot == snapshot {
                    current.insert(taken.entry);
                } else {
                    known.extend(taken.ids.iter().filter_map(|text| parse(text)));
                }
            }
            Read::Damaged(why) => {
                tracing::warn!(path = %spot.path.display(), line = spot.line, why, "damaged");
            }
        })?;
        Ok(Self {
            book,
            sums,
            ids,
            known,
            before,
            current,
        })
    }

    /// Nothing is written for a while.
    pub(crate) fn rest(&mut self) -> Result<(), Error> {
        self.book.rest()
    }

    /// The same book for a new snapshot, unless somebody else has written to it: then it must be
    /// opened.
    pub(crate) fn again(mut self) -> Option<Self> {
        self.current.clear();
        self.book.is_current().then_some(self)
    }

    pub(crate) fn seen(&self, record: &Record) -> Seen {
        let id = &record.id();
        match self.known.get(id).or_else(|| self.before.get(id)) {
            None => Seen::Never,
            Some(checksum) if *checksum == record.checksum() => Seen::Same,
            Some(_) => Seen::Other,
        }
    }

    pub(crate) fn learn(&mut self, record: &Record) {
        self.known.insert(record.id(), record.checksum());
    }

    /// Adds an entry, unless a crash came after that.
    pub(crate) fn add(&mut self, taken: &mut Taken) -> Result<(), Error> {
        if self.current.contains(&taken.entry) {
            return Ok(());
        }
        if let Err(error) = self.book.add(taken) {
            if !error.is_full() {
                return Err(error);
            }
            // What is staged must be able to leave a full disk. These ids are not known then if
            // they are staged again.
            tracing::warn!(entry = taken.entry, "no room to remember its ids");
            taken.ids.clear();
            self.book.add(taken)?;
        }
        self.sums.add(taken);
        self.ids += taken.ids.len() as u64;
        Ok(())
    }

    pub(crate) fn sync(&self) -> Result<(), Error> {
        self.book.sync()
    }

    /// Begins a new generation when the time has come. Never in the midst of a snapshot: going on
    /// with it after a crash must find what it began with.
    pub(crate) fn turn_if_full(&mut self) -> Result<(), Error> {
        if self.ids >= WINDOW {
            self.book.turn(&self.sums)?;
            self.ids = 0;
            self.before = std::mem::take(&mut self.known);
        }
        Ok(())
    }
}

/// How a record is written down.
pub(crate) fn id_text(record: &Record) -> String {
    format!("{} {:08x}", record.id().simple(), record.checksum())
}

/// The id and checksum of a record that was written down.
pub(crate) fn parse(text: &str) -> Option<(Uuid, u32)> {
    let (id, checksum) = text.split_once(' ')?;
    Some((
        Uuid::try_parse(id).ok()?,
        u32::from_str_radix(checksum, 16).ok()?,
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::disk::RealDisk;
    use crate::time::new_id;

    #[test]
    fn an_id_is_known_for_two_generations_whether_the_book_was_kept_or_read() {
        let dir = tempfile::tempdir().unwrap();
        let data = DataDir::new(dir.path());
        let disk: Arc<dyn Disk> = Arc::new(RealDisk);
        data.make(&*disk).unwrap();
        let records: Vec<_> = (0..3).map(|_| Record::parse("{}").unwrap()).collect();
        let mut kept = TakenBook::open(&disk, &data, new_id()).unwrap();
        for record in &records {
            let mut taken = Taken::new(new_id(), "x.jsonl");
            taken.ids.push(id_text(record));
            taken.records = 1;
            kept.learn(record);
            kept.add(&mut taken).unwrap();
            kept.ids = WINDOW; // as if it were full
            kept.turn_if_full().unwrap();
            kept = kept.again().unwrap();
        }
        let read = TakenBook::open(&disk, &data, new_id()).unwrap();
        for book in [&kept, &read] {
            let seen: Vec<_> = records.iter().map(|record| book.seen(record)).collect();
            assert_eq!(seen, [Seen::Never, Seen::Never, Seen::Same]);
            assert_eq!((book.sums.records, book.ids), (3, 0));
        }
    }
}
