//! Entries that became unreadable before their snapshot was finished, and their lines that are
//! already in batches: `_staging/.left-out.json`.
//!
//! After a crash, an entry of the unfinished snapshot may be unreadable, although some of its lines
//! are already in batches. The snapshot is then finished without the entry (the entry is excluded),
//! and the entry's file stays. The file may become readable much later, when the journal does not
//! know the ids of these lines any more. So the file `.left-out.json` lists the lines, and no later
//! snapshot puts them into a batch again.

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

/// Lines that are in batches of a snapshot from which their entry was excluded, because the entry
/// became unreadable. Later snapshots skip these lines.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(super) struct ExcludedEntries {
    version: u32,
    /// Ranges of line numbers (first and last) by entry name and by the id of the snapshot whose
    /// batches have these lines. A snapshot with another id must skip them, otherwise their records
    /// would be delivered twice.
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

    /// Adds an entry that became unreadable and is therefore excluded from the rest of a snapshot.
    /// `lines` are the entry's lines that batches of this snapshot already have: later snapshots
    /// skip them.
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

    /// True if a batch of a snapshot other than `snapshot` has this line of an excluded entry. If
    /// `snapshot` put the line into a batch as well, its record would be delivered twice.
    pub(super) fn is_in_other_snapshot(&self, name: &str, snapshot: Uuid, line: u64) -> bool {
        let snapshots = self.entries.get(name).into_iter().flatten();
        let mut ranges = snapshots
            .filter(|(other, _)| **other != snapshot)
            .flat_map(|(_, ranges)| ranges);
        ranges.any(|[from, to]| (*from..=*to).contains(&line))
    }

    /// Writes `.left-out.json`, and syncs the file and its name.
    pub(super) fn write(&mut self, disk: &dyn Disk, staging: &Path) -> Result<(), Error> {
        self.version = VERSION;
        write_atomically(disk, staging, FILE, &encode(self))?;
        let synced = disk.sync_dir(staging);
        synced.map_err(|error| Error::new("sync", staging, error))
    }

    /// Removes `consumed` entries from `.left-out.json`, and deletes the file when no entry is
    /// left. The snapshot with the consumed entries is written, so no later snapshot has to skip
    /// their lines.
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
