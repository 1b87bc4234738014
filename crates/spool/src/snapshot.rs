//! The set of entries that is being consolidated: a file of its own, complete or absent.
//!
//! ```text
//! _staging/.consolidation.set        these entries, and how; nothing else is begun before it is done
//! _staging/.consolidation.written    the same, when everything that comes of it is on the disk
//! ```
//!
//! On a full disk the reserve holds it, and notes which set is written.
//!
//! The lock's record names the entries too, but for people: it is written in place, and may tear.

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
/// Version of a set that does not delete all its entries: an older program must not finish it.
const VERSION_IF_EXCLUDED: u32 = 2;
const SET: &str = ".consolidation.set";
const WRITTEN: &str = ".consolidation.written";
/// The id of the set that is written, in the reserve.
const WRITTEN_NOTE: &str = "written";

/// Entries that are consolidated together.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Snapshot {
    version: u32,
    /// Tells it from every other one.
    pub(crate) id: Uuid,
    /// How many records go into a batch.
    pub(crate) batch_size: usize,
    pub(crate) entries: Vec<String>,
    /// Those among them that cannot be read, after some batches were written. They stay where they are
    /// and are consolidated again later: the ids of what is in batches are known.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) excluded: Vec<String>,
    /// Everything that comes of it is on the disk: what remains is to delete the entries.
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

    /// The entries that are deleted when everything that comes of them is on the disk.
    pub(crate) fn consumed(&self) -> impl Iterator<Item = &String> {
        let entries = self.entries.iter();
        entries.filter(|name| !self.excluded.contains(name))
    }

    /// Leaves entries where they are. On the disk when this returns.
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

    /// The set that somebody began in a staging directory and did not end.
    pub(crate) fn read(disk: &dyn Disk, staging: &Path) -> Result<Option<Self>, Error> {
        for (name, is_written) in [(WRITTEN, true), (SET, false)] {
            let path = staging.join(name);
            let bytes = match read_bounded(disk, &path) {
                Ok(bytes) => bytes.unwrap_or_default(),
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                Err(error) => return Err(Error::read(&path, error)),
            };
            let mut set: Self = match decode_version(&path, &bytes, VERSION) {
                Err(error) if error.is_version() => {
                    decode_version(&path, &bytes, VERSION_IF_EXCLUDED)?
                }
                set => set?,
            };
            // Whatever it says: nothing but entries is ever read or deleted.
            set.entries
                .retain(|name| EntryName::parse(name.as_ref()).is_some());
            set.is_written = is_written || written_in_reserve(disk, staging)? == Some(set.id);
            return Ok(Some(set));
        }
        Ok(None)
    }

    /// Begins it. On the disk when this returns.
    pub(crate) fn begin(&self, disk: &dyn Disk, staging: &Path) -> Result<(), Error> {
        write_atomically(disk, staging, SET, &encode(self))?;
        sync(disk, staging)
    }

    /// Everything that comes of it is on the disk. So is this, when it returns; it needs no room.
    pub(crate) fn mark_written(&mut self, disk: &dyn Disk, staging: &Path) -> Result<(), Error> {
        let from = staging.join(SET);
        files::rename(disk, &from, &staging.join(WRITTEN))
            .map_err(|error| Error::new("rename", &from, error))?;
        sync(disk, staging)?;
        self.is_written = true;
        Ok(())
    }

    /// Its entries are gone. On the disk when this returns: a file that is given the name of one
    /// of them from now on is another entry.
    pub(crate) fn end(disk: &dyn Disk, staging: &Path) -> Result<(), Error> {
        let mut ended = false;
        for path in Self::paths(staging) {
            let is_there = files::exists(disk, &path);
            if is_there.map_err(|error| Error::read(&path, error))? {
                files::remove(disk, &path).map_err(|error| Error::new("delete", &path, error))?;
                ended = true;
            }
        }
        let reserve = Reserve::new(staging);
        let failed = |error| Error::new("write to", reserve.path(), error);
        if reserve.read(disk).map_err(failed)?.has_note(WRITTEN_NOTE) {
            sync(disk, staging)?;
            let forgotten = reserve.change(disk, |held| held.remove_note(WRITTEN_NOTE));
            forgotten.map_err(failed)?;
        }
        if ended { sync(disk, staging) } else { Ok(()) }
    }

    pub(crate) fn paths(staging: &Path) -> [PathBuf; 2] {
        [SET, WRITTEN].map(|name| staging.join(name))
    }
}

/// Notes in the reserve that everything that comes of a set is on the disk.
pub(crate) fn note_written(held: &mut ReserveContents, set: Uuid) {
    held.set_note(WRITTEN_NOTE, &Some(set));
}

fn written_in_reserve(disk: &dyn Disk, staging: &Path) -> Result<Option<Uuid>, Error> {
    let reserve = Reserve::new(staging);
    let noted = reserve.read(disk).and_then(|held| held.note(WRITTEN_NOTE));
    noted.map_err(|error| Error::read(reserve.path(), error))
}

fn sync(disk: &dyn Disk, staging: &Path) -> Result<(), Error> {
    disk.sync_dir(staging)
        .map_err(|error| Error::new("sync", staging, error))
}
