//! Entries that were left out of a set since they could not be read, after some of their lines were in
//! batches: `_staging/.left-out.json`.
//!
//! The ids of those lines are in the journal, but for a bounded number of records. The entry may be
//! readable again much later: these lines are not taken again, whatever the journal has forgotten.

use std::collections::{BTreeMap, HashSet};
use std::io;
use std::path::Path;

use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::disk::Disk;
use crate::error::Error;
use crate::files::{self, read_bounded, write_atomically};
use crate::journal::{decode_version, encode};

const VERSION: u32 = 1;
const FILE: &str = ".left-out.json";

/// The entries, by name.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(super) struct ExcludedEntries {
    version: u32,
    /// By the set that the entry was left out of: lines that are in batches of it, in ranges.
    entries: BTreeMap<String, BTreeMap<Uuid, Vec<[u64; 2]>>>,
}

impl ExcludedEntries {
    pub(super) fn read(disk: &dyn Disk, staging: &Path) -> Result<Self, Error> {
        let path = staging.join(FILE);
        match read_bounded(disk, &path) {
            Ok(bytes) => decode_version(&path, &bytes.unwrap_or_default(), VERSION),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Self::default()),
            Err(error) => Err(Error::read(&path, error)),
        }
    }

    /// Adds an entry.
    pub(super) fn add(&mut self, name: &str, set: Uuid, lines: impl Iterator<Item = u64>) {
        let mut put = Vec::<[u64; 2]>::new();
        for line in lines {
            match put.last_mut() {
                Some([_, to]) if *to + 1 == line => *to = line,
                _ => put.push([line, line]),
            }
        }
        let sets = self.entries.entry(name.to_owned()).or_default();
        sets.insert(set, put);
    }

    /// True if a line is in a batch of another set.
    pub(super) fn has(&self, name: &str, set: Uuid, line: u64) -> bool {
        let sets = self.entries.get(name).into_iter().flatten();
        let mut put = sets
            .filter(|(other, _)| **other != set)
            .flat_map(|(_, put)| put);
        put.any(|[from, to]| (*from..=*to).contains(&line))
    }

    /// Writes the entries. On the disk when this returns.
    pub(super) fn write(&mut self, disk: &dyn Disk, staging: &Path) -> Result<(), Error> {
        self.version = VERSION;
        write_atomically(disk, staging, FILE, &encode(self))?;
        let synced = disk.sync_dir(staging);
        synced.map_err(|error| Error::new("sync", staging, error))
    }

    /// Forgets entries that are consumed.
    pub(super) fn forget(
        disk: &dyn Disk,
        staging: &Path,
        consumed: &HashSet<String>,
    ) -> Result<(), Error> {
        let mut left = Self::read(disk, staging)?;
        let before = left.entries.len();
        left.entries.retain(|name, _| !consumed.contains(name));
        if left.entries.len() == before {
            return Ok(());
        }
        if !left.entries.is_empty() {
            return left.write(disk, staging);
        }
        let path = staging.join(FILE);
        match files::remove(disk, &path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                Err(Error::new("delete", &path, error))
            }
            _ => Ok(()),
        }
    }
}
