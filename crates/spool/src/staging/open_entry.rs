//! The entry that is being written.

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

/// How often a new file is tried.
const MOST_TRIES: u32 = 100;
/// What a disk allocates at once.
const BLOCK: u64 = 4096;
/// Room that is left for the seal: a full disk must not keep an entry from being sealed.
const SEAL: u64 = 64;
/// How far a file grows ahead of its lines.
const MOST_AHEAD: u64 = 256 * 1024;

/// How far an entry was written when a sync began.
#[derive(Clone, Copy, Debug)]
pub(super) struct SyncExtent {
    bytes: u64,
    unsynced: usize,
}

/// An entry that this process writes. Its lock is held while it exists: nobody else cuts, seals or
/// renames it.
#[derive(Debug)]
pub(super) struct OpenEntry {
    id: Uuid,
    path: PathBuf,
    /// Shared with whoever is syncing it.
    file: Arc<File>,
    /// Lines that are not yet with the kernel.
    unwritten: Vec<u8>,
    /// A copy of the lines that were acknowledged before a sync: if that fails, what the file has of
    /// them is unknown, and they are written again.
    unsynced: Vec<u8>,
    /// How long the lines are that are on the disk for sure.
    synced: u64,
    /// A sync has failed: what the file has is unknown, and no later sync makes it known.
    is_doubtful: bool,
    pub(super) records: u64,
    /// How long the lines are that the kernel has.
    pub(super) bytes: u64,
    /// Up to where the file is filled, behind the lines with spaces.
    room: u64,
    pub(super) first_record: Instant,
    /// Its name is on the disk.
    pub(super) is_named: bool,
    /// It has records of another file, and was not synced either.
    pub(super) is_copy: bool,
}

impl OpenEntry {
    pub(super) fn create(disk: &dyn Disk, staging: &Path) -> Result<Self, Error> {
        for _ in 0..MOST_TRIES {
            if let Some(entry) = Self::try_create(disk, staging)? {
                return Ok(entry);
            }
        }
        let busy = io::Error::from(io::ErrorKind::ResourceBusy);
        Err(Error::new("create an entry in", staging, busy))
    }

    /// `None`: a consolidator looked at the file before it was locked, and took it for one whose
    /// writer is gone.
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
        // What is written to a file without a name is lost.
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
            is_doubtful: false,
            records: 0,
            bytes: 0,
            room: 0,
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

    /// Adds a line. `durability` tells whether it is acknowledged before it is synced.
    pub(super) fn add(&mut self, line: PreparedLine<'_>, durability: Durability) {
        self.records += 1;
        let start = self.unwritten.len();
        line.write(&mut self.unwritten, self.records);
        if durability == Durability::Process {
            self.unsynced.extend(&self.unwritten[start..]);
        }
    }

    /// The extent that a sync which begins now puts on the disk, if it succeeds.
    pub(super) fn mark(&self) -> SyncExtent {
        SyncExtent {
            bytes: self.bytes,
            unsynced: self.unsynced.len(),
        }
    }

    /// A sync has succeeded: content and name are on the disk up to the mark.
    pub(super) fn is_synced(&mut self, mark: SyncExtent) {
        self.synced = self.synced.max(mark.bytes);
        self.unsynced.drain(..mark.unsynced);
        self.is_named = true;
    }

    /// How many bytes of records are kept until they are on the disk.
    pub(super) fn kept(&self) -> usize {
        self.unsynced.len()
    }

    /// The records that were acknowledged and may not be on the disk.
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

    /// True if the kernel has all of its lines.
    pub(super) fn is_written(&self) -> bool {
        self.unwritten.is_empty()
    }

    /// True if a sync has failed.
    pub(super) fn is_doubtful(&self) -> bool {
        self.is_doubtful
    }

    /// Forgets records beyond so many bytes: they were not acknowledged after all.
    pub(super) fn keep_only(&mut self, bytes: usize) {
        self.unsynced.truncate(bytes);
    }

    /// Removes from the file what is unknown, once it was written elsewhere.
    pub(super) fn cut_to_synced(self, disk: &dyn Disk) {
        let _ = if self.synced == 0 {
            disk.remove(&self.path)
        } else {
            disk.truncate(&self.file, self.synced)
        };
    }

    /// Hands what was added to the kernel.
    ///
    /// The file grows in steps, ahead of what is written: where its length and its blocks stay the
    /// same, a sync is only about data and takes half the time.
    pub(super) fn write(&mut self, disk: &dyn Disk) -> Result<(), Error> {
        if self.unwritten.is_empty() {
            return Ok(());
        }
        let end = self.bytes + self.unwritten.len() as u64;
        if end + SEAL > self.room {
            // A small entry stays small.
            self.room = (end + SEAL + end.min(MOST_AHEAD)).next_multiple_of(BLOCK);
            let ahead = usize::try_from(self.room - end).unwrap_or(0);
            self.unwritten.resize(self.unwritten.len() + ahead, b' ');
        }
        let written = disk.write_at(&self.file, self.bytes, &self.unwritten);
        if written.is_err() {
            self.undo(disk);
        }
        written.map_err(|error| Error::new("write to", &self.path, error))?;
        self.bytes = end;
        self.unwritten.clear();
        Ok(())
    }

    /// Takes back what a failed write left, as far as that can be done: a full disk must not fill
    /// with halves of lines.
    fn undo(&self, disk: &dyn Disk) {
        let _ = if self.bytes == 0 {
            disk.remove(&self.path)
        } else {
            disk.truncate(&self.file, self.bytes)
        };
    }

    /// Makes it complete: its last line says how many records it has, its name that it is sealed.
    /// An entry without records is removed instead. After an error it can be tried again, unless the
    /// entry is doubtful.
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
        if length < self.room {
            disk.truncate(&self.file, length).map_err(failed)?;
        }
        if let Err(error) = disk.sync(&self.file) {
            self.is_doubtful = true;
            return Err(failed(error));
        }
        let sealed = EntryName {
            id: self.id,
            kind: EntryKind::Sealed,
        };
        let sealed = sealed.path_in(staging);
        match disk.rename(&self.path, &sealed) {
            // An earlier attempt has come so far, whatever was said of it; or the name is gone.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                if !disk.exists(&sealed).map_err(failed)? {
                    self.is_doubtful = true;
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
