//! The reserve: space that is allocated in advance, so that records can be delivered from a full
//! disk. It is the file `_staging/.reserve`.
//!
//! The file is written in full when it is created and never freed. While the disk is full, it
//! stores the files that could not be written ([`ReserveContents`]), and the ids of consolidated
//! records. Every write overwrites existing bytes of the file, so that no other program can use up
//! the space. docs/decisions/0008-reserved-space-is-never-freed.md explains why.
//!
//! ```text
//! page 0, page 1    two heads; of those whose area is intact, the one with the higher sequence counts
//! area 0, area 1    the contents that each head describes
//! the rest          a ring of ids, 20 bytes each
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
pub(crate) use ids::IdRange;

pub(crate) const FILE: &str = ".reserve";
const STAGING: &str = "_staging";
const PAGE: u64 = 4096;
/// Minimum length of a reserve. A shorter reserve could not store a batch.
const MIN_BYTES: u64 = 64 * 1024;
/// Maximum number of bytes that a batch must leave free in an area, which stores one version of the
/// reserve's contents. The margin keeps room for the note that the batch was delivered, and is at
/// most a quarter of the area.
const MAX_MARGIN: u64 = 64 * 1024;
/// Maximum wait for another process that changes the reserve.
const LOCK_TIMEOUT: Duration = Duration::from_secs(30);

/// The reserve of a data directory: a file whose space is allocated in advance, for writes while
/// the disk is full. The file may be missing.
#[derive(Clone, Debug)]
pub(crate) struct Reserve {
    path: PathBuf,
}

/// An open and locked reserve. No other process can change the reserve while this value exists.
#[derive(Debug)]
pub(crate) struct OpenReserve {
    file: File,
    layout: ReserveLayout,
}

/// Division of the reserve file into two heads, two areas and the ring of record ids. The division
/// depends on the file's length, which never changes.
#[derive(Clone, Copy, Debug)]
struct ReserveLayout {
    /// Length of each of the two areas, which store the contents of the reserve. Changes overwrite
    /// them alternately, so that a crash leaves the previous contents intact.
    area: u64,
    /// Offset of the ring of record ids, which reaches to the end of the file.
    ids: u64,
    /// Length of the reserve file, where the ring of record ids ends.
    end: u64,
}

/// Purpose of a write to the reserve, which limits how full the reserve may be after the write.
/// Each variant may use more space than the variants in front of it. This order keeps space for the
/// note that a stored batch was delivered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum ReserveUse {
    /// Stores a batch while the reserve has other batches. The reserve may be only a quarter full
    /// afterwards, since every change rewrites all batches.
    MoreBatches,
    /// Stores the only batch in the reserve, or half of a split batch, up to the margin that is
    /// kept for notes about its delivery. A half is not limited to a quarter of the space:
    /// otherwise no rejected batch could be split while the disk is full.
    Batch,
    /// Stores a file that is not a batch, such as totals, and that the reserve does not have yet.
    /// The file may use half of the margin that batches leave free.
    NewFile,
    /// Replaces a file in the reserve with a new version. The new version may use three quarters of
    /// the margin that batches leave free, so that an update fits where a new file does not.
    SameFile,
    /// Stores a note (a JSON value with a name), or removes a file or note. A removal rewrites the
    /// contents that remain. These writes may use all space: delivery needs them to free the
    /// reserve.
    Note,
}

impl ReserveLayout {
    /// Maximum length of the reserve's contents, which are stored in one area, after a write with
    /// this purpose.
    fn max_contents(self, purpose: ReserveUse) -> u64 {
        let margin = (self.area / 4).min(MAX_MARGIN);
        match purpose {
            ReserveUse::MoreBatches => self.area / 4,
            ReserveUse::Batch => self.area - margin,
            ReserveUse::NewFile => self.area - margin / 2,
            ReserveUse::SameFile => self.area - margin / 4,
            ReserveUse::Note => self.area,
        }
    }

    /// Returns the division of a reserve file of this length; `None` if the file is too short to be
    /// a reserve.
    fn new(length: u64) -> Option<Self> {
        let area = (length.saturating_sub(2 * PAGE) / 16 * 3).next_multiple_of(PAGE);
        let layout = Self {
            area,
            ids: 2 * PAGE + 2 * area,
            end: length,
        };
        (length >= MIN_BYTES).then_some(layout)
    }

    fn area_at(self, sequence: u64) -> u64 {
        2 * PAGE + sequence % 2 * self.area
    }

    fn head_at(sequence: u64) -> u64 {
        sequence % 2 * PAGE
    }
}

impl Reserve {
    /// Returns the reserve of this staging directory, without creating or opening its file.
    pub(crate) fn new(staging: &Path) -> Self {
        Self {
            path: staging.join(FILE),
        }
    }

    /// Returns the reserve of the data directory of which `dir` is a subdirectory, without opening
    /// it.
    pub(crate) fn beside(dir: &Path) -> Self {
        let root = dir.parent().unwrap_or(Path::new(""));
        Self::new(&root.join(STAGING))
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    pub(crate) fn exists(&self) -> bool {
        let found = self.path.symlink_metadata();
        found.is_ok_and(|found| found.is_file() && found.len() >= MIN_BYTES)
    }

    /// Opens the reserve for changes. Waits while another process changes it.
    pub(crate) fn open(&self, disk: &dyn Disk) -> io::Result<OpenReserve> {
        let file = disk.open_to_write(&self.path)?;
        let start = Instant::now();
        while !tenure::file::try_lock(&file)? {
            if start.elapsed() > LOCK_TIMEOUT {
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
