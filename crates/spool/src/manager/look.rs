//! Read-only views of pending, failed and archived batches.

use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::time::{Duration, SystemTime};

use super::{Pause, SpoolManager};
use crate::batch::{self, BatchHead};
use crate::disk::DiskReader;
use crate::error::Error;
use crate::files::{self, for_each_file};
use crate::quarantine::Reason;

/// A pending batch.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct PendingBatch {
    /// File name.
    pub name: String,
    /// Number of records.
    pub records: u64,
    /// Number of attempts.
    pub attempts: u32,
    /// Number of runs in which the batch failed.
    pub rounds: u32,
    /// Time of the first attempt to deliver the batch; `None` if there was none.
    pub first_attempt: Option<SystemTime>,
    /// Earliest time of the next attempt to deliver the batch.
    pub not_before: Option<SystemTime>,
    /// Error of the last attempt to deliver the batch, shown to people.
    pub last_error: Option<String>,
    /// True if the destination may have the batch, because the result of an attempt is unknown.
    /// Such a batch is never split.
    pub is_unknown: bool,
}

/// A file in `failed/` or `archive/`, as a listing for people shows it.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Failed {
    /// File name.
    pub name: String,
    /// Reason why the file is in `failed/` or `archive/`.
    pub reason: String,
    /// Time at which the file was moved to `failed/`. `None` for a file in `archive/`, or if the
    /// time is unknown.
    pub at: Option<SystemTime>,
    /// True for a batch, which can be resent.
    pub is_batch: bool,
    /// True if the destination may have the batch, because the result of an attempt is unknown.
    /// Sending the batch again may then bill its records twice.
    pub is_ambiguous: bool,
    /// Number of records in the file, if it is a batch.
    pub records: u64,
    /// Number of attempts to deliver the file, if it is a batch.
    pub attempts: u32,
}

/// True if a file in `failed/` is neither a reason file nor a hidden file.
pub(super) fn is_failed(name: &str) -> bool {
    !name.starts_with('.') && Reason::parse_file_name(name).is_none()
}

impl SpoolManager {
    /// Returns the records and the delivery state of a pending batch.
    pub fn pending_batch(&self, name: &str) -> Result<PendingBatch, Error> {
        let records = match self.head(&self.data.spool.join(name)) {
            Ok(head) => head.count,
            // The number of records of a damaged batch is unknown. The next run moves the batch to
            // `failed/`.
            Err(error) if error.is_damage() => 0,
            Err(error) => return Err(error),
        };
        let state = self.state(name)?;
        let wait = Duration::from_millis(state.waits_for);
        let now = SystemTime::now().into();
        Ok(PendingBatch {
            name: name.to_owned(),
            records,
            attempts: state.attempts,
            rounds: state.rounds,
            first_attempt: state.first_attempt.map(Into::into),
            // If the clock went back, the wait starts again now.
            not_before: (state.waits_since).map(|since| since.min(now).after(wait).into()),
            is_unknown: state.is_unknown(),
            last_error: state.last_error,
        })
    }

    /// Returns the pauses of all destinations, the most recent pause first.
    pub fn pauses(&self) -> Result<Vec<Pause>, Error> {
        Ok(super::pause::read(&self.data)?.pauses)
    }

    /// Returns the files in `failed/`, ordered by name.
    pub fn failed(&self) -> Result<Vec<Failed>, Error> {
        let mut names = Vec::new();
        for_each_file(&*self.disk, &self.data.failed, |name| {
            if is_failed(name) {
                names.push(name.to_owned());
            }
        })?;
        names.sort_unstable();
        Ok(names
            .into_iter()
            .map(|name| self.failed_one(name))
            .collect())
    }

    /// Returns the batches in `archive/`, ordered by name.
    pub fn archived(&self) -> Result<Vec<Failed>, Error> {
        let mut names = Vec::new();
        for_each_file(&*self.disk, &self.data.archive, |name| {
            if batch::is_batch_name(name) {
                names.push(name.to_owned());
            }
        })?;
        names.sort_unstable();
        let describe = |name: String| {
            let records = self.head(&self.data.archive.join(&name))?.count;
            Ok(Failed {
                name,
                reason: "no destination".to_owned(),
                at: None,
                is_batch: true,
                is_ambiguous: false,
                records,
                attempts: 0,
            })
        };
        names.into_iter().map(describe).collect()
    }

    fn head(&self, path: &Path) -> Result<BatchHead, Error> {
        let failed = |error| Error::read(path, error);
        if let Some(bytes) = files::held(&*self.disk, path).map_err(failed)? {
            return BatchHead::read(&bytes)
                .map_err(|damage| Error::damage(path, damage.to_string()));
        }
        let mut line = Vec::new();
        let file = BufReader::new(DiskReader::open(&*self.disk, path).map_err(failed)?);
        file.take(batch::MAX_BYTES as u64)
            .read_until(b'\n', &mut line)
            .map_err(failed)?;
        BatchHead::read(&line).map_err(|damage| Error::damage(path, damage.to_string()))
    }

    fn failed_one(&self, name: String) -> Failed {
        let reason = match Reason::read(&*self.disk, &self.data.failed, &name) {
            Ok(reason) => reason,
            Err(error) => {
                tracing::warn!(%error, "the reason of a file in failed/ cannot be read");
                None
            }
        };
        let batch = reason.as_ref().and_then(|reason| reason.batch.clone());
        Failed {
            is_batch: batch.is_some() && batch::is_batch_name(&name),
            is_ambiguous: batch.as_ref().is_some_and(|batch| batch.ambiguous),
            records: batch.as_ref().map_or(0, |batch| batch.records),
            attempts: batch.map_or(0, |batch| batch.attempts),
            at: reason.as_ref().map(|reason| reason.at.into()),
            reason: reason.map_or_else(|| "unknown reason".to_owned(), |reason| reason.why),
            name,
        }
    }
}
