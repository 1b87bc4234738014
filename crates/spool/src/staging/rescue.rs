//! Records that were acknowledged and whose file a failed sync has made doubtful. They are written
//! again to a new file; a sync of the old one would succeed and mean nothing.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::{Duration, Instant};

use uuid::Uuid;

use super::Durability;
use super::open_entry::OpenEntry;
use crate::disk::Disk;
use crate::error::Error;
use crate::line::PreparedLine;
use crate::record::Record;

/// How soon a disk that failed is tried again.
pub(super) const RETRY_AFTER: Duration = Duration::from_secs(1);
/// Maximum number of doubtful files that are kept open: until their records are elsewhere nobody else
/// may use them.
const MOST_SOURCES: usize = 8;

/// Records that must be written again.
#[derive(Debug, Default)]
pub(super) struct Rescue {
    /// By id, so that a record that is staged again and again is there once.
    records: BTreeMap<Uuid, Record>,
    bytes: usize,
    /// The files that may or may not have these records.
    sources: Vec<OpenEntry>,
    /// Not before this time.
    pub(super) not_before: Option<Instant>,
}

impl Rescue {
    pub(super) fn is_empty(&self) -> bool {
        self.records.is_empty()
    }

    /// How many bytes of records are kept.
    pub(super) fn kept(&self) -> usize {
        self.bytes
    }

    /// Adds the records of a file that is given up.
    pub(super) fn add(&mut self, mut entry: OpenEntry) {
        for record in entry.take_unsynced() {
            let bytes = record.json().len();
            if self.records.insert(record.id(), record).is_none() {
                self.bytes += bytes;
            }
        }
        if self.sources.len() < MOST_SOURCES {
            self.sources.push(entry);
        }
    }

    /// Adds what another one has left to do.
    pub(super) fn put_back(&mut self, other: Self) {
        for (id, record) in other.records {
            let bytes = record.json().len();
            if self.records.insert(id, record).is_none() {
                self.bytes += bytes;
            }
        }
        self.sources.extend(other.sources);
        self.not_before = other.not_before;
    }

    /// Writes the records to a new file, which is on the disk when this returns. The old files lose
    /// what is not on the disk for sure: their other records are sealed by whoever recovers them.
    pub(super) fn write(&mut self, disk: &dyn Disk, dir: &Path) -> Result<(), Error> {
        let mut entry = OpenEntry::create(disk, dir)?;
        for record in self.records.values() {
            entry.add(PreparedLine::new(record), Durability::Power);
        }
        let sealed = entry.write(disk).and_then(|()| entry.seal(disk, dir));
        if let Err(error) = sealed {
            if entry.is_written() {
                // The kernel has it, if not the disk: this is the best copy there is.
                self.replace_copy(entry, disk);
            }
            return Err(error);
        }
        for source in self.sources.drain(..) {
            source.cut_to_synced(disk);
        }
        *self = Self::default();
        Ok(())
    }

    /// Keeps the file of a failed attempt in place of that of the one before it.
    fn replace_copy(&mut self, mut copy: OpenEntry, disk: &dyn Disk) {
        if let Some(last) = self.sources.pop_if(|source| source.is_copy) {
            last.cut_to_synced(disk);
        }
        copy.is_copy = true;
        self.sources.push(copy);
    }
}
