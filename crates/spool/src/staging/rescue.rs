//! Acknowledged records of files whose sync has failed. They are written to a new file, because a
//! later sync of the old file may succeed although data was lost.

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

/// Time after which a failed attempt is repeated: to seal an entry, or to write records to a new
/// file.
pub(super) const RETRY_AFTER: Duration = Duration::from_secs(1);
/// Maximum number of old files that stay open and locked. The lock keeps other processes from
/// recovering a file before its records are in the new one.
const MAX_SOURCES: usize = 8;

/// Acknowledged records that must be written to a new file, because a write or sync of their file
/// has failed and a power failure may lose them.
#[derive(Debug, Default)]
pub(super) struct Rescue {
    /// Records by id, so that a record that is staged repeatedly is stored once.
    records: BTreeMap<Uuid, Record>,
    bytes: usize,
    /// Old files that may contain the records. They stay locked until the records are in a new
    /// file, and are then truncated to their synced lines.
    sources: Vec<OpenEntry>,
    /// Earliest time of the next attempt to write the records, after one has failed.
    pub(super) not_before: Option<Instant>,
}

impl Rescue {
    pub(super) fn is_empty(&self) -> bool {
        self.records.is_empty()
    }

    /// Number of bytes of the records that must be written to a new file.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Adds the unsynced records of an abandoned entry.
    pub(super) fn add(&mut self, mut entry: OpenEntry) {
        for record in entry.take_unsynced() {
            let bytes = record.json().len();
            if self.records.insert(record.id(), record).is_none() {
                self.bytes += bytes;
            }
        }
        if self.sources.len() < MAX_SOURCES {
            self.sources.push(entry);
        }
    }

    /// Adds the records that a failed attempt could not write, so that the next attempt writes them
    /// as well.
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

    /// Writes the records to a new file. The file is synced and sealed when this returns. The old
    /// files are truncated to their synced lines, which a consolidator recovers.
    pub(super) fn write(&mut self, disk: &dyn Disk, dir: &Path) -> Result<(), Error> {
        let mut entry = OpenEntry::create(disk, dir)?;
        for record in self.records.values() {
            entry.add(PreparedLine::new(record), Durability::Power);
        }
        let sealed = entry.write(disk).and_then(|()| entry.seal(disk, dir));
        if let Err(error) = sealed {
            if entry.is_written() {
                // Keep the new file although it is not synced: the kernel has its records, so that
                // they survive the end of this process.
                self.replace_copy(entry, disk);
            }
            return Err(error);
        }
        for source in self.sources.drain(..) {
            source.truncate_to_synced(disk);
        }
        *self = Self::default();
        Ok(())
    }

    /// Keeps the new file of a failed attempt to write the records: the kernel has its records, so
    /// that they survive the end of this process. Removes the file of the attempt before, so that
    /// such copies do not accumulate.
    fn replace_copy(&mut self, mut copy: OpenEntry, disk: &dyn Disk) {
        if let Some(last) = self.sources.pop_if(|source| source.is_copy) {
            last.truncate_to_synced(disk);
        }
        copy.is_copy = true;
        self.sources.push(copy);
    }
}
