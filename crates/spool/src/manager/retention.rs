//! Bounds for what stays after delivery: `archive/` and `failed/`. Nothing is deleted unless a bound is
//! set.

use std::collections::BinaryHeap;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use super::ledger::BatchOutcome;
use super::{SpoolManager, check};
use crate::batch;
use crate::data_dir::for_each_file;
use crate::error::Error;
use crate::quarantine::Reason;

/// Files that are deleted after one look at the directory, so that memory is bounded.
const MOST_AT_ONCE: usize = if cfg!(test) { 2 } else { 10_000 };

/// A directory whose files stay until a bound is set, or a person deletes them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeptIn {
    /// Batches that had no destination.
    Archive,
    /// Batches and files that could not be delivered or read.
    Failed,
}

/// Bounds for such a directory. The default has none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Keep {
    /// Delete files that were written longer ago.
    pub max_age: Option<Duration>,
    /// Delete the oldest files while all of them together are larger, in bytes.
    pub max_bytes: Option<u64>,
}

/// Number and size of files.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FileTotals {
    /// How many there are.
    pub files: u64,
    /// Their length in all.
    pub bytes: u64,
}

/// A file that may be deleted. The greatest is the youngest.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Candidate {
    written: SystemTime,
    name: String,
    /// With the reason that is deleted with it.
    bytes: u64,
}

impl Keep {
    /// True if nothing is ever deleted.
    pub fn is_unlimited(&self) -> bool {
        *self == Self::default()
    }
}

impl SpoolManager {
    /// Number and size of the files in a directory.
    pub fn kept(&self, dir: KeptIn) -> Result<FileTotals, Error> {
        let mut kept = FileTotals::default();
        self.each_kept(self.kept_dir(dir), |_, _, bytes| {
            kept.files += 1;
            kept.bytes += bytes;
        })?;
        Ok(kept)
    }

    /// Deletes the oldest files of a directory until its bounds are respected, and returns what was
    /// deleted. The books still balance: deleted batches stay archived or failed in them. Files that
    /// are not ours, and batches that cannot be read, stay.
    ///
    /// Whoever calls this must be the only one who delivers: see [`DeliveryLock`](crate::DeliveryLock).
    ///
    /// ```
    /// use spool::{DeliveryLock, Keep, KeptIn, SpoolManager};
    ///
    /// let data = tempfile::tempdir()?;
    /// let _lock = DeliveryLock::acquire(data.path())?;
    /// let keep = Keep { max_bytes: Some(1 << 30), ..Keep::default() };
    /// let deleted = SpoolManager::new(data.path()).prune(KeptIn::Archive, &keep)?;
    /// assert_eq!(deleted.files, 0);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn prune(&self, dir: KeptIn, keep: &Keep) -> Result<FileTotals, Error> {
        let mut deleted = FileTotals::default();
        if keep.is_unlimited() {
            return Ok(deleted);
        }
        let now = SystemTime::now();
        let (mut after, mut failed) = (None, None);
        loop {
            let (mut total, oldest) = self.oldest(dir, after.as_ref())?;
            let found = oldest.len();
            let mut gone = 0;
            // Files that cannot be deleted stay the oldest: the next look goes past them.
            after = oldest.last().cloned();
            for file in oldest {
                let age = now.duration_since(file.written).unwrap_or_default();
                let is_old = keep.max_age.is_some_and(|max| age > max);
                let is_too_much = keep.max_bytes.is_some_and(|max| total > max);
                if !is_old && !is_too_much {
                    after = None;
                    break;
                }
                match self.delete(dir, &file.name) {
                    Ok(true) => {
                        total -= file.bytes.min(total);
                        gone += 1;
                        deleted.files += 1;
                        deleted.bytes += file.bytes;
                    }
                    Ok(false) => {}
                    Err(error) if error.stays_in_place() => {
                        tracing::debug!(%error, "not deleted");
                    }
                    // Others can be deleted.
                    Err(error) if error.path() == self.kept_dir(dir).join(&file.name) => {
                        if error.is_read_only() {
                            return Err(error);
                        }
                        failed.get_or_insert(error);
                    }
                    Err(error) => return Err(error),
                }
            }
            if gone > 0 {
                self.sync_dir(self.kept_dir(dir))?;
            }
            if after.is_none() || found < MOST_AT_ONCE {
                return failed.map_or(Ok(deleted), Err);
            }
        }
    }

    /// The size of all files, and those of ours that are the oldest after another one, the oldest first.
    fn oldest(
        &self,
        dir: KeptIn,
        after: Option<&Candidate>,
    ) -> Result<(u64, Vec<Candidate>), Error> {
        let (mut total, mut oldest) = (0, BinaryHeap::new());
        self.each_kept(self.kept_dir(dir), |name, written, bytes| {
            total += bytes;
            let is_after =
                after.is_none_or(|after| (after.written, &*after.name) < (written, name));
            if is_after && self.is_ours(dir, name) {
                oldest.push(Candidate {
                    written,
                    name: name.to_owned(),
                    bytes: bytes + self.reason_bytes(dir, name),
                });
                if oldest.len() > MOST_AT_ONCE {
                    oldest.pop();
                }
            }
        })?;
        Ok((total, oldest.into_sorted_vec()))
    }

    fn is_ours(&self, dir: KeptIn, name: &str) -> bool {
        match dir {
            KeptIn::Archive => batch::is_batch_name(name),
            // Whatever we put there has a reason beside it.
            KeptIn::Failed => {
                let reason = self.data.failed.join(Reason::file_name(name));
                super::look::is_failed(name) && self.exists(&reason).unwrap_or(false)
            }
        }
    }

    /// The length of the file with the reason of this one.
    fn reason_bytes(&self, dir: KeptIn, name: &str) -> u64 {
        match dir {
            KeptIn::Archive => 0,
            KeptIn::Failed => {
                let reason = self.data.failed.join(Reason::file_name(name));
                reason.symlink_metadata().map_or(0, |about| about.len())
            }
        }
    }

    /// Deletes a file. `false`: it cannot be accounted for, and stays.
    fn delete(&self, dir: KeptIn, name: &str) -> Result<bool, Error> {
        let path = self.kept_dir(dir).join(name);
        if dir == KeptIn::Failed && batch::is_batch_name(name) {
            let bytes = self.content(&path)?;
            let Ok(batch) = check(name, &bytes) else {
                return Ok(false);
            };
            // A crash may have come before the file was gone.
            if self.outcome(name)? != Some(BatchOutcome::Discarded) {
                self.note(&batch, BatchOutcome::Discarded, "")?;
            }
        }
        self.remove(&path)?;
        if dir == KeptIn::Failed {
            self.remove(&self.data.failed.join(Reason::file_name(name)))?;
        }
        Ok(true)
    }

    fn kept_dir(&self, dir: KeptIn) -> &Path {
        match dir {
            KeptIn::Archive => &self.data.archive,
            KeptIn::Failed => &self.data.failed,
        }
    }

    /// Calls `each` with the name of every file, when it was written and its length.
    fn each_kept(
        &self,
        dir: &Path,
        mut each: impl FnMut(&str, SystemTime, u64),
    ) -> Result<(), Error> {
        for_each_file(&*self.disk, dir, |name| {
            let path: PathBuf = dir.join(name);
            // A file that is gone by now, or whose age is not known, is not counted.
            if let Ok(about) = path.symlink_metadata()
                && let Ok(written) = about.modified()
            {
                each(name, written, about.len());
            }
        })
    }
}
