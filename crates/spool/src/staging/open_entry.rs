//! The entry that is being written.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use uuid::Uuid;

use crate::disk::Disk;
use crate::entry::{Kind, Name};
use crate::error::Error;
use crate::line::{self, Prepared};
use crate::time::new_id;

/// How often a new file is tried.
const MOST_TRIES: u32 = 100;
/// What a disk allocates at once.
const BLOCK: u64 = 4096;
/// Room that is left for the seal: a full disk must not keep an entry from being sealed.
const SEAL: u64 = 64;
/// How far a file grows ahead of its lines.
const MOST_AHEAD: u64 = 256 * 1024;

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
    pub(super) records: u64,
    /// How long the lines are that the kernel has.
    pub(super) bytes: u64,
    /// Up to where the file is filled, behind the lines with spaces.
    room: u64,
    pub(super) first_record: Instant,
    /// Its name is on the disk.
    pub(super) is_named: bool,
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
        let path = Name {
            id,
            kind: Kind::Open,
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
            records: 0,
            bytes: 0,
            room: 0,
            first_record: Instant::now(),
            is_named: false,
        }))
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    pub(super) fn file(&self) -> Arc<File> {
        Arc::clone(&self.file)
    }

    pub(super) fn add(&mut self, line: Prepared<'_>) {
        self.records += 1;
        line.write(&mut self.unwritten, self.records);
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
    /// An entry without records is removed instead.
    pub(super) fn seal(mut self, disk: &dyn Disk, staging: &Path) -> Result<(), Error> {
        let failed = |error| Error::new("seal", &self.path, error);
        if self.records == 0 {
            return disk.remove(&self.path).map_err(failed);
        }
        line::write_sealed(&mut self.unwritten, self.records);
        disk.write_at(&self.file, self.bytes, &self.unwritten)
            .map_err(failed)?;
        let end = self.bytes + self.unwritten.len() as u64;
        if end < self.room {
            disk.truncate(&self.file, end).map_err(failed)?;
        }
        disk.sync(&self.file).map_err(failed)?;
        let sealed = Name {
            id: self.id,
            kind: Kind::Sealed,
        };
        disk.rename(&self.path, &sealed.path_in(staging))
            .map_err(failed)?;
        disk.sync_dir(staging).map_err(failed)
    }
}
