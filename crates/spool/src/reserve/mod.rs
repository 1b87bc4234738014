//! Space for a full disk: `_staging/.reserve`.
//!
//! The file is written in full when it is created and never freed. While the disk is full, it holds
//! the files that could not be written ([`ReserveContents`]), and the ids of consolidated records. Every write
//! to it overwrites bytes that it already has, so that no other program can take the space.
//! docs/decisions/0008-reserved-space-is-never-freed.md explains why.
//!
//! ```text
//! page 0, page 1    two heads; the one with the higher sequence number whose area is intact counts
//! area 0, area 1    the content that a head describes
//! the rest          ids: 20 bytes each
//! ```

mod contents;
mod create;
mod ids;

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use crate::disk::Disk;

pub(crate) use contents::ReserveContents;
pub(crate) use create::{BYTES, remove_old};
pub(crate) use ids::Ids;

/// The file's name in the staging directory.
pub(crate) const FILE: &str = ".reserve";
const STAGING: &str = "_staging";
const PAGE: u64 = 4096;
/// A shorter file holds too little to be of use.
const FEWEST_BYTES: u64 = 64 * 1024;
/// An area keeps this much, or a quarter, for notes about what it holds.
const LARGEST_MARGIN: u64 = 64 * 1024;
/// Maximum wait for another process that changes the reserve.
const PATIENCE: Duration = Duration::from_secs(30);

/// The reserve of a data directory. It may be missing.
#[derive(Clone, Debug)]
pub(crate) struct Reserve {
    path: PathBuf,
}

/// The reserve, locked: no other process changes it.
#[derive(Debug)]
pub(crate) struct OpenReserve {
    file: File,
    layout: ReserveLayout,
}

/// The division of the file. It follows from its length, which never changes.
#[derive(Clone, Copy, Debug)]
struct ReserveLayout {
    area: u64,
    ids: u64,
    end: u64,
}

/// Uses of the reserve. Each may use more of it than the one before, so that a delivery can always be
/// noted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum ReserveUse {
    /// One more batch. There are few at a time, since every change writes all of them.
    MoreBatches,
    /// A batch that is to be delivered, the only one.
    Batch,
    /// Another file.
    NewFile,
    /// A new version of a file that the reserve holds.
    SameFile,
    /// A note, or nothing more than before.
    Note,
}

impl ReserveLayout {
    /// How many bytes an area may have for this use.
    fn most(self, what: ReserveUse) -> u64 {
        let margin = (self.area / 4).min(LARGEST_MARGIN);
        match what {
            ReserveUse::MoreBatches => self.area / 4,
            ReserveUse::Batch => self.area - margin,
            ReserveUse::NewFile => self.area - margin / 2,
            ReserveUse::SameFile => self.area - margin / 4,
            ReserveUse::Note => self.area,
        }
    }

    fn new(length: u64) -> Option<Self> {
        let area = (length.saturating_sub(2 * PAGE) / 16 * 3).next_multiple_of(PAGE);
        let layout = Self {
            area,
            ids: 2 * PAGE + 2 * area,
            end: length,
        };
        (length >= FEWEST_BYTES).then_some(layout)
    }

    fn area_at(self, sequence: u64) -> u64 {
        2 * PAGE + sequence % 2 * self.area
    }

    fn head_at(sequence: u64) -> u64 {
        sequence % 2 * PAGE
    }
}

impl Reserve {
    /// The reserve of this staging directory.
    pub(crate) fn new(staging: &Path) -> Self {
        Self {
            path: staging.join(FILE),
        }
    }

    /// The reserve of the data directory that has this directory.
    pub(crate) fn beside(dir: &Path) -> Self {
        let root = dir.parent().unwrap_or(Path::new(""));
        Self::new(&root.join(STAGING))
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    pub(crate) fn exists(&self) -> bool {
        let found = self.path.symlink_metadata();
        found.is_ok_and(|found| found.is_file() && found.len() >= FEWEST_BYTES)
    }

    /// Opens the reserve for changes. Waits for a process that changes it.
    pub(crate) fn open(&self, disk: &dyn Disk) -> io::Result<OpenReserve> {
        let file = disk.open_to_write(&self.path)?;
        let start = Instant::now();
        while !tenure::file::try_lock(&file)? {
            if start.elapsed() > PATIENCE {
                return Err(io::ErrorKind::ResourceBusy.into());
            }
            thread::sleep(Duration::from_millis(1));
        }
        let length = file.metadata()?.len();
        Ok(OpenReserve {
            layout: ReserveLayout::new(length).ok_or(io::ErrorKind::NotFound)?,
            file,
        })
    }
}
