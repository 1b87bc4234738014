//! Limits for the files that stay after delivery: `archive/` and `failed/`. No file is deleted
//! unless a limit is set.

use std::collections::BinaryHeap;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use super::ledger::BatchOutcome;
use super::{SpoolManager, check};
use crate::batch;
use crate::data_dir::for_each_file;
use crate::error::Error;
use crate::quarantine::Reason;

/// Maximum number of files that are deleted after one listing of the directory. It bounds the
/// memory.
const PAGE: usize = if cfg!(test) { 2 } else { 10_000 };

/// A directory whose files stay until a limit is set, or a person deletes them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeptIn {
    /// `archive/`: batches that were archived because no destination is configured.
    Archive,
    /// `failed/`: batches that could not be delivered, and damaged files.
    Failed,
}

/// Limits for the files of a [`KeptIn`] directory. The default has none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Keep {
    /// Maximum age of a file in the directory. Older files are deleted.
    pub max_age: Option<Duration>,
    /// Maximum size of all files together, in bytes. The oldest files are deleted first.
    pub max_bytes: Option<u64>,
}

/// Number and size of the files in a directory that has limits, or of those that were deleted from
/// it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FileTotals {
    /// Number of files.
    pub files: u64,
    /// Size of all files together.
    pub bytes: u64,
}

/// A file that may be deleted. Candidates are ordered by age, the oldest first.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Candidate {
    written: SystemTime,
    name: String,
    /// Size of the file and of its reason file, which is deleted with it.
    bytes: u64,
}

enum Deletion {
    Done,
    Refused,
}

impl Keep {
    /// True if no limit is set.
    pub fn is_unlimited(&self) -> bool {
        *self == Self::default()
    }
}

impl SpoolManager {
    /// Returns the number and size of the files in `archive/` or `failed/`.
    pub fn kept(&self, dir: KeptIn) -> Result<FileTotals, Error> {
        let mut kept = FileTotals::default();
        self.each_kept(self.kept_dir(dir), |_, _, bytes| {
            kept.files += 1;
            kept.bytes += bytes;
        })?;
        Ok(kept)
    }

    /// Deletes the oldest files of a directory until it is within its limits. Returns the number
    /// and size of the deleted files. The books still balance: deleted batches stay archived or
    /// failed in them. Foreign files, and batches that cannot be read, are not deleted.
    ///
    /// The caller must hold the [`DeliveryLock`](crate::DeliveryLock).
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
            let listed = oldest.len();
            let mut has_deleted = false;
            // The next listing starts after the last file of this one. Otherwise files that cannot
            // be deleted would be listed again, and the loop would never end.
            after = oldest.last().cloned();
            for file in oldest {
                let age = now.duration_since(file.written).unwrap_or_default();
                let is_too_old = keep.max_age.is_some_and(|max| age > max);
                let is_too_much = keep.max_bytes.is_some_and(|max| total > max);
                if !is_too_old && !is_too_much {
                    after = None;
                    break;
                }
                match self.delete(dir, &file.name) {
                    Ok(Deletion::Done) => {
                        total -= file.bytes.min(total);
                        has_deleted = true;
                        deleted.files += 1;
                        deleted.bytes += file.bytes;
                    }
                    Ok(Deletion::Refused) => {}
                    Err(error) if error.stays_in_place() => {
                        tracing::debug!(%error, "file not deleted");
                    }
                    // A file that cannot be deleted must not keep the other files from being
                    // deleted. The first such error is returned at the end.
                    Err(error) if error.path() == self.kept_dir(dir).join(&file.name) => {
                        if error.is_read_only() {
                            return Err(error);
                        }
                        failed.get_or_insert(error);
                    }
                    Err(error) => return Err(error),
                }
            }
            if has_deleted {
                self.sync_dir(self.kept_dir(dir))?;
            }
            if after.is_none() || listed < PAGE {
                return failed.map_or(Ok(deleted), Err);
            }
        }
    }

    /// Returns the size of all files, and the next page of files that may be deleted, oldest first.
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
                if oldest.len() > PAGE {
                    oldest.pop();
                }
            }
        })?;
        Ok((total, oldest.into_sorted_vec()))
    }

    fn is_ours(&self, dir: KeptIn, name: &str) -> bool {
        match dir {
            KeptIn::Archive => batch::is_batch_name(name),
            // Every file that spool puts into `failed/` has a reason file beside it. A file without
            // one is foreign.
            KeptIn::Failed => {
                let reason = self.data.failed.join(Reason::file_name(name));
                super::look::is_failed(name) && self.exists(&reason).unwrap_or(false)
            }
        }
    }

    /// Returns the size of the reason file of a failed file.
    fn reason_bytes(&self, dir: KeptIn, name: &str) -> u64 {
        match dir {
            KeptIn::Archive => 0,
            KeptIn::Failed => {
                let reason = self.data.failed.join(Reason::file_name(name));
                reason.symlink_metadata().map_or(0, |about| about.len())
            }
        }
    }

    /// Deletes a file. A damaged batch is not deleted, because the number of its records is unknown
    /// and the books would not balance.
    fn delete(&self, dir: KeptIn, name: &str) -> Result<Deletion, Error> {
        let path = self.kept_dir(dir).join(name);
        if dir == KeptIn::Failed && batch::is_batch_name(name) {
            let bytes = self.content(&path)?;
            let Ok(batch) = check(name, &bytes) else {
                return Ok(Deletion::Refused);
            };
            // Add no second event, which would count the records twice: if a process crashed
            // between the event and the deletion, the journal has the event already.
            if self.outcome(name)? != Some(BatchOutcome::Discarded) {
                self.add_event(&batch, BatchOutcome::Discarded, "")?;
            }
        }
        self.remove(&path)?;
        if dir == KeptIn::Failed {
            self.remove(&self.data.failed.join(Reason::file_name(name)))?;
        }
        Ok(Deletion::Done)
    }

    fn kept_dir(&self, dir: KeptIn) -> &Path {
        match dir {
            KeptIn::Archive => &self.data.archive,
            KeptIn::Failed => &self.data.failed,
        }
    }

    /// Calls `each` with the name, the time of the last write and the size of every file.
    fn each_kept(
        &self,
        dir: &Path,
        mut each: impl FnMut(&str, SystemTime, u64),
    ) -> Result<(), Error> {
        for_each_file(&*self.disk, dir, |name| {
            let path: PathBuf = dir.join(name);
            // A file that was deleted meanwhile, or whose age is unknown, is not counted.
            if let Ok(about) = path.symlink_metadata()
                && let Ok(written) = about.modified()
            {
                each(name, written, about.len());
            }
        })
    }
}
