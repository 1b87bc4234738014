//! Excluded entries: `_staging/.left-out.json`.
//!
//! An entry is excluded from a snapshot if it becomes unreadable after some of its lines are in
//! batches. It may be readable again much later, when the journal does not know the ids of these
//! lines any more. So the lines are stored in a file, and no later snapshot puts them into a batch.

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

/// Lines of excluded entries that are in batches.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(super) struct ExcludedEntries {
    version: u32,
    /// By the entry's name and the id of the snapshot that it was excluded from: ranges of lines in
    /// batches of that snapshot.
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

    /// Adds an entry that is excluded from a snapshot, with its lines in batches of that snapshot.
    pub(super) fn add(&mut self, name: &str, snapshot: Uuid, lines: impl Iterator<Item = u64>) {
        let mut ranges = Vec::<[u64; 2]>::new();
        for line in lines {
            match ranges.last_mut() {
                Some([_, to]) if *to + 1 == line => *to = line,
                _ => ranges.push([line, line]),
            }
        }
        let snapshots = self.entries.entry(name.to_owned()).or_default();
        snapshots.insert(snapshot, ranges);
    }

    /// True if a line is in a batch of another snapshot.
    pub(super) fn is_in_other_snapshot(&self, name: &str, snapshot: Uuid, line: u64) -> bool {
        let snapshots = self.entries.get(name).into_iter().flatten();
        let mut ranges = snapshots
            .filter(|(other, _)| **other != snapshot)
            .flat_map(|(_, ranges)| ranges);
        ranges.any(|[from, to]| (*from..=*to).contains(&line))
    }

    /// Writes the file, and syncs it.
    pub(super) fn write(&mut self, disk: &dyn Disk, staging: &Path) -> Result<(), Error> {
        self.version = VERSION;
        write_atomically(disk, staging, FILE, &encode(self))?;
        let synced = disk.sync_dir(staging);
        synced.map_err(|error| Error::new("sync", staging, error))
    }

    /// Removes entries that were consumed.
    pub(super) fn forget(
        disk: &dyn Disk,
        staging: &Path,
        consumed: &HashSet<String>,
    ) -> Result<(), Error> {
        let mut excluded = Self::read(disk, staging)?;
        let before = excluded.entries.len();
        excluded.entries.retain(|name, _| !consumed.contains(name));
        if excluded.entries.len() == before {
            return Ok(());
        }
        if !excluded.entries.is_empty() {
            return excluded.write(disk, staging);
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
