//! Entries that this process writes.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use uuid::Uuid;

use super::Durability;
use crate::disk::Disk;
use crate::entry::{EntryKind, EntryName};
use crate::error::Error;
use crate::line::{self, Line, PreparedLine};
use crate::record::Record;
use crate::time::new_id;

/// Maximum number of attempts to create a file. An attempt fails if a consolidator takes the new
/// file for that of a crashed writer.
const MAX_TRIES: u32 = 100;
/// Block size of common file systems. The length of an entry's file is rounded up to whole blocks,
/// since the file occupies whole blocks anyway.
const BLOCK: u64 = 4096;
/// Space that is allocated in the file for its last line, so that the entry can be sealed on a full
/// disk.
const SEAL: u64 = 64;
/// Maximum number of bytes by which a file is allocated ahead of its lines. Allocation ahead makes
/// syncs faster; the maximum bounds the disk space that an open entry takes without need.
const MAX_AHEAD: u64 = 256 * 1024;

/// Extent of an entry when a sync began: the sync covers no later bytes.
#[derive(Clone, Copy, Debug)]
pub(super) struct SyncExtent {
    bytes: u64,
    unsynced: usize,
}

/// An entry that this process writes. The lock of its file is held while the value exists, so that
/// no other process truncates, seals or renames the file.
#[derive(Debug)]
pub(super) struct OpenEntry {
    id: Uuid,
    path: PathBuf,
    /// The entry's file. Shared with a producer that syncs the file without holding the lock of the
    /// state.
    file: Arc<File>,
    /// Lines that are not written to the file yet.
    unwritten: Vec<u8>,
    /// Copy of the lines that were acknowledged before a sync. If the sync fails, these lines are
    /// written to a new file.
    unsynced: Vec<u8>,
    /// Number of bytes at the start of the file whose lines are synced. After a failed sync, the
    /// file is truncated to this length.
    synced: u64,
    /// True if a sync has failed. The content of the file is then unknown, also after a later sync
    /// that succeeds.
    has_unknown_content: bool,
    pub(super) records: u64,
    /// Number of bytes of the lines that are written to the file, synced or not. The next line is
    /// written behind them.
    pub(super) bytes: u64,
    /// Length of the file: the lines, followed by spaces.
    allocated: u64,
    pub(super) first_record: Instant,
    /// True if the directory entry of the file is synced. Until then, a sync of the file must also
    /// sync the directory.
    pub(super) is_named: bool,
    /// True if the file is left from a failed attempt to write records again, after the sync of
    /// their first file had failed. The next failed attempt removes this file, so that such copies
    /// do not accumulate.
    pub(super) is_copy: bool,
}

impl OpenEntry {
    pub(super) fn create(disk: &dyn Disk, staging: &Path) -> Result<Self, Error> {
        for _ in 0..MAX_TRIES {
            if let Some(entry) = Self::try_create(disk, staging)? {
                return Ok(entry);
            }
        }
        let busy = io::Error::from(io::ErrorKind::ResourceBusy);
        Err(Error::new("create an entry in", staging, busy))
    }

    /// Creates and locks a file. Returns `None` if a consolidator found the file before it was
    /// locked, and recovered it as that of a crashed writer.
    fn try_create(disk: &dyn Disk, staging: &Path) -> Result<Option<Self>, Error> {
        let id = new_id();
        let path = EntryName {
            id,
            kind: EntryKind::Open,
        }
        .path_in(staging);
        let failed = |error| Error::new("create", &path, error);
        let file = disk.create(&path).map_err(failed)?;
        if !tenure::file::try_lock(&file).map_err(failed)? {
            return Ok(None);
        }
        // A consolidator may have removed the empty file before it was locked above. Records in a
        // file without a name would be lost.
        if !disk.exists(&path).map_err(failed)? {
            return Ok(None);
        }
        let mut unwritten = Vec::with_capacity(4096);
        line::write_entry(&mut unwritten, id);
        Ok(Some(Self {
            id,
            path,
            file: Arc::new(file),
            unwritten,
            unsynced: Vec::new(),
            synced: 0,
            has_unknown_content: false,
            records: 0,
            bytes: 0,
            allocated: 0,
            first_record: Instant::now(),
            is_named: false,
            is_copy: false,
        }))
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    pub(super) fn file(&self) -> Arc<File> {
        Arc::clone(&self.file)
    }

    /// Adds a line. With [`Durability::Process`] the line is acknowledged before it is synced.
    pub(super) fn add(&mut self, line: PreparedLine<'_>, durability: Durability) {
        self.records += 1;
        let start = self.unwritten.len();
        line.write(&mut self.unwritten, self.records);
        if durability == Durability::Process {
            self.unsynced.extend(&self.unwritten[start..]);
        }
    }

    /// Returns the part of the entry that a sync which begins now covers.
    pub(super) fn sync_extent(&self) -> SyncExtent {
        SyncExtent {
            bytes: self.bytes,
            unsynced: self.unsynced.len(),
        }
    }

    /// Marks the bytes that a successful sync covered, and the name of the file in its directory,
    /// as synced.
    pub(super) fn mark_synced(&mut self, extent: SyncExtent) {
        self.synced = self.synced.max(extent.bytes);
        self.unsynced.drain(..extent.unsynced);
        self.is_named = true;
    }

    /// Number of bytes of this entry's records that are acknowledged and not synced.
    pub(super) fn unsynced_bytes(&self) -> usize {
        self.unsynced.len()
    }

    /// Removes and returns the records that are acknowledged and not synced.
    pub(super) fn take_unsynced(&mut self) -> Vec<Record> {
        let lines = std::mem::take(&mut self.unsynced);
        let lines = lines.split(|byte| *byte == b'\n');
        lines
            .filter_map(|text| match line::read(text) {
                Ok(Line::Record { record, .. }) => Some(record),
                _ => None,
            })
            .collect()
    }

    pub(super) fn is_written(&self) -> bool {
        self.unwritten.is_empty()
    }

    /// True if a sync has failed, and the content of the file is unknown.
    pub(super) fn has_unknown_content(&self) -> bool {
        self.has_unknown_content
    }

    /// Drops the copies of unsynced lines behind the first `bytes` bytes. The write of these lines
    /// has failed, and their producer gets the error, so that they need not be written to a new
    /// file.
    pub(super) fn truncate_unsynced(&mut self, bytes: usize) {
        self.unsynced.truncate(bytes);
    }

    /// Truncates the file to its synced lines, or removes the file if it has none. Called after the
    /// unsynced records were written to a new file.
    pub(super) fn truncate_to_synced(self, disk: &dyn Disk) {
        let _ = if self.synced == 0 {
            disk.remove(&self.path)
        } else {
            disk.truncate(&self.file, self.synced)
        };
    }

    /// The file grows in steps, ahead of its lines. While its length and its blocks stay the same,
    /// a sync writes only data and takes half the time.
    pub(super) fn write(&mut self, disk: &dyn Disk) -> Result<(), Error> {
        if self.unwritten.is_empty() {
            return Ok(());
        }
        let end = self.bytes + self.unwritten.len() as u64;
        if end + SEAL > self.allocated {
            // Allocate ahead at most as many bytes as the lines have, so that the files of small
            // entries stay small.
            self.allocated = (end + SEAL + end.min(MAX_AHEAD)).next_multiple_of(BLOCK);
            let ahead = usize::try_from(self.allocated - end).unwrap_or(0);
            self.unwritten.resize(self.unwritten.len() + ahead, b' ');
        }
        let written = disk.write_at(&self.file, self.bytes, &self.unwritten);
        if written.is_err() {
            self.undo_write(disk);
        }
        written.map_err(|error| Error::new("write to", &self.path, error))?;
        self.bytes = end;
        self.unwritten.clear();
        Ok(())
    }

    /// Removes the bytes that a failed write left, if possible. Otherwise repeated writes would
    /// fill a full disk with incomplete lines.
    fn undo_write(&self, disk: &dyn Disk) {
        let _ = if self.bytes == 0 {
            disk.remove(&self.path)
        } else {
            disk.truncate(&self.file, self.bytes)
        };
    }

    /// Seals the entry: adds a last line with the number of records, syncs the file and renames it.
    /// An entry without records is removed instead. After an error the seal can be repeated, unless
    /// the entry has unknown content.
    pub(super) fn seal(&mut self, disk: &dyn Disk, staging: &Path) -> Result<(), Error> {
        let failed = |error| Error::new("seal", &self.path, error);
        if self.records == 0 {
            return match disk.remove(&self.path) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => Err(failed(error)),
                _ => Ok(()),
            };
        }
        let mut end = self.unwritten.clone();
        line::write_sealed(&mut end, self.records);
        disk.write_at(&self.file, self.bytes, &end)
            .map_err(failed)?;
        let length = self.bytes + end.len() as u64;
        if length < self.allocated {
            disk.truncate(&self.file, length).map_err(failed)?;
        }
        if let Err(error) = disk.sync(&self.file) {
            self.has_unknown_content = true;
            return Err(failed(error));
        }
        let sealed = EntryName {
            id: self.id,
            kind: EntryKind::Sealed,
        };
        let sealed = sealed.path_in(staging);
        match disk.rename(&self.path, &sealed) {
            // The file is not at its path any more. Either an earlier attempt renamed it although
            // the rename reported an error, and the entry is sealed. Or the file was removed, and
            // its unsynced records must be written to a new file.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                if !disk.exists(&sealed).map_err(failed)? {
                    self.has_unknown_content = true;
                    return Err(failed(error));
                }
            }
            renamed => renamed.map_err(failed)?,
        }
        disk.sync_dir(staging).map_err(failed)?;
        self.unsynced.clear();
        Ok(())
    }
}
