//! Snapshots: the frozen set of entries of one consolidation, in a file that is complete or absent.
//!
//! ```text
//! _staging/.consolidation.set        the snapshot; no other begins before this one is finished
//! _staging/.consolidation.written    the same file, renamed once batches, journal and totals are synced
//! ```
//!
//! While the disk is full, the snapshot file is stored in the reserve, `_staging/.reserve`, whose
//! space is allocated in advance. If the disk is too full for the journal as well, the write that
//! adds the journal's events to the reserve also adds the id of the written snapshot. This id has
//! the same meaning as the rename that otherwise marks the snapshot as written.
//!
//! The lock record names the entries as well, but only for people: the lock record is overwritten
//! in place, so that a crash can leave it incomplete.

use std::io;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::disk::Disk;
use crate::entry::EntryName;
use crate::error::Error;
use crate::files::{self, read_bounded, write_atomically};
use crate::journal::{decode_version, encode};
use crate::reserve::{Reserve, ReserveContents};
use crate::time::new_id;

const VERSION: u32 = 1;
/// Version of a snapshot with excluded entries. An older program would delete the excluded entries,
/// so it must reject the snapshot.
const VERSION_IF_EXCLUDED: u32 = 2;
const UNFINISHED_FILE: &str = ".consolidation.set";
const WRITTEN_FILE: &str = ".consolidation.written";
/// Name of a value in the reserve: the id of a snapshot whose batches and totals are synced, and
/// whose journal events are in the reserve because the disk is full. After a crash, only the
/// entries of this snapshot are left to delete.
const WRITTEN_NOTE: &str = "written";

/// Entries that are consolidated together, and the size of their batches.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Snapshot {
    version: u32,
    pub(crate) id: Uuid,
    /// Maximum number of records in each batch of the snapshot. Stored, so that a repetition after
    /// a crash writes the same batches.
    pub(crate) batch_size: usize,
    pub(crate) entries: Vec<String>,
    /// Entries of the snapshot that became unreadable after some of its batches were written. They
    /// stay in place for a later snapshot, which skips their records that are in batches.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) excluded: Vec<String>,
    /// True if batches, journal and totals are synced, and only the entries are left to delete.
    #[serde(skip)]
    pub(crate) is_written: bool,
}

impl Snapshot {
    pub(crate) fn new(entries: Vec<String>, batch_size: usize) -> Self {
        Self {
            version: VERSION,
            id: new_id(),
            batch_size,
            entries,
            excluded: Vec::new(),
            is_written: false,
        }
    }

    /// Entries that are deleted once the snapshot is written: all but the excluded ones.
    pub(crate) fn consumed(&self) -> impl Iterator<Item = &String> {
        let entries = self.entries.iter();
        entries.filter(|name| !self.excluded.contains(name))
    }

    /// Excludes unreadable entries from the snapshot, so that they are not deleted with it and go
    /// into a later snapshot. Syncs the snapshot file.
    pub(crate) fn exclude(
        &mut self,
        disk: &dyn Disk,
        staging: &Path,
        entries: Vec<String>,
    ) -> Result<(), Error> {
        self.excluded.extend(entries);
        self.version = VERSION_IF_EXCLUDED;
        self.begin(disk, staging)
    }

    /// Reads the unfinished snapshot of a staging directory, if there is one.
    pub(crate) fn read(disk: &dyn Disk, staging: &Path) -> Result<Option<Self>, Error> {
        for (name, is_written) in [(WRITTEN_FILE, true), (UNFINISHED_FILE, false)] {
            let path = staging.join(name);
            let bytes = match read_bounded(disk, &path) {
                Ok(bytes) => bytes.unwrap_or_default(),
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                Err(error) => return Err(Error::read(&path, error)),
            };
            let mut snapshot: Self = match decode_version(&path, &bytes, VERSION) {
                Err(error) if error.is_version() => {
                    decode_version(&path, &bytes, VERSION_IF_EXCLUDED)?
                }
                decoded => decoded?,
            };
            // A damaged or forged snapshot must not make spool read or delete files that are not
            // entries.
            snapshot
                .entries
                .retain(|name| EntryName::parse(name.as_ref()).is_some());
            snapshot.is_written =
                is_written || written_in_reserve(disk, staging)? == Some(snapshot.id);
            return Ok(Some(snapshot));
        }
        Ok(None)
    }

    /// Writes the snapshot, and syncs it.
    pub(crate) fn begin(&self, disk: &dyn Disk, staging: &Path) -> Result<(), Error> {
        write_atomically(disk, staging, UNFINISHED_FILE, &encode(self))?;
        sync(disk, staging)
    }

    /// Marks the snapshot as written, and syncs the mark. The mark is a rename, which needs no
    /// space on a full disk.
    pub(crate) fn mark_written(&mut self, disk: &dyn Disk, staging: &Path) -> Result<(), Error> {
        let from = staging.join(UNFINISHED_FILE);
        files::rename(disk, &from, &staging.join(WRITTEN_FILE))
            .map_err(|error| Error::new("rename", &from, error))?;
        sync(disk, staging)?;
        self.is_written = true;
        Ok(())
    }

    /// Deletes the snapshot file once the entries of the snapshot are deleted, and syncs the
    /// deletion. If the snapshot file stayed, a new file with the name of one of these entries
    /// would be deleted unread after a crash.
    pub(crate) fn end(disk: &dyn Disk, staging: &Path) -> Result<(), Error> {
        let mut is_deleted = false;
        for path in Self::paths(staging) {
            let exists = files::exists(disk, &path);
            if exists.map_err(|error| Error::read(&path, error))? {
                files::remove(disk, &path).map_err(|error| Error::new("delete", &path, error))?;
                is_deleted = true;
            }
        }
        let reserve = Reserve::new(staging);
        let failed = |error| Error::new("write to", reserve.path(), error);
        if reserve.read(disk).map_err(failed)?.has_note(WRITTEN_NOTE) {
            sync(disk, staging)?;
            reserve
                .change(disk, |contents| contents.remove_note(WRITTEN_NOTE))
                .map_err(failed)?;
        }
        if is_deleted {
            sync(disk, staging)
        } else {
            Ok(())
        }
    }

    /// Paths of the two names of the snapshot file: while the snapshot is unfinished, and after it
    /// is marked as written.
    pub(crate) fn paths(staging: &Path) -> [PathBuf; 2] {
        [UNFINISHED_FILE, WRITTEN_FILE].map(|name| staging.join(name))
    }
}

/// Stores in the reserve (space preallocated for a full disk) that a snapshot is written, so that
/// after a crash only its entries are left to delete.
pub(crate) fn note_written(contents: &mut ReserveContents, snapshot: Uuid) {
    contents.set_note(WRITTEN_NOTE, &Some(snapshot));
}

/// Returns the id of the snapshot that the reserve marks as written. The reserve has this mark if
/// the disk was too full for the snapshot's events in the journal.
fn written_in_reserve(disk: &dyn Disk, staging: &Path) -> Result<Option<Uuid>, Error> {
    let reserve = Reserve::new(staging);
    let noted = reserve
        .read(disk)
        .and_then(|contents| contents.note(WRITTEN_NOTE));
    noted.map_err(|error| Error::read(reserve.path(), error))
}

fn sync(disk: &dyn Disk, staging: &Path) -> Result<(), Error> {
    disk.sync_dir(staging)
        .map_err(|error| Error::new("sync", staging, error))
}
