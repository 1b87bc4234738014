//! Looking at what waits and at what failed, without changing anything.

use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::time::{Duration, SystemTime};

use super::{BatchStore, Pause, SpoolManager};
use crate::batch::{self, BatchHead};
use crate::disk::DiskReader;
use crate::error::Error;
use crate::files::{self, for_each_file};
use crate::quarantine::Reason;

/// A batch that waits.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Waiting {
    /// The name of its file.
    pub name: String,
    /// How many it has.
    pub records: u64,
    /// How often it was tried.
    pub attempts: u32,
    /// In how many runs it failed.
    pub rounds: u32,
    /// When it was tried first.
    pub first_attempt: Option<SystemTime>,
    /// It is not tried again before that.
    pub not_before: Option<SystemTime>,
    /// What came of the last attempt.
    pub last_error: Option<String>,
    /// The destination may have it.
    pub is_unknown: bool,
}

/// Something in `failed/`.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Failed {
    /// The name of its file.
    pub name: String,
    /// Why it is there.
    pub reason: String,
    /// Since when.
    pub at: Option<SystemTime>,
    /// A whole batch, which can be resent.
    pub is_batch: bool,
    /// The destination may have it.
    pub is_ambiguous: bool,
    /// Of a batch: how many it has.
    pub records: u64,
    /// Of a batch: how often it was tried.
    pub attempts: u32,
}

/// Whether a file in `failed/` is what was put there, not why.
pub(super) fn is_failed(name: &str) -> bool {
    !name.starts_with('.') && Reason::parse_file_name(name).is_none()
}

impl SpoolManager {
    /// What is known of a batch that waits.
    pub fn waiting(&self, name: &str) -> Result<Waiting, Error> {
        let records = match self.head(&self.data.spool.join(name)) {
            Ok(head) => head.count,
            // The deliverer sets it aside.
            Err(error) if error.is_damage() => 0,
            Err(error) => return Err(error),
        };
        let state = self.state(name)?;
        let wait = Duration::from_millis(state.waits_for);
        let now = SystemTime::now().into();
        Ok(Waiting {
            name: name.to_owned(),
            records,
            attempts: state.attempts,
            rounds: state.rounds,
            first_attempt: state.first_attempt.map(Into::into),
            // A clock that went back says nothing about how long is left.
            not_before: (state.waits_since).map(|since| since.min(now).after(wait).into()),
            is_unknown: state.is_unknown(),
            last_error: state.last_error,
        })
    }

    /// Until when nothing is sent, and why, for each destination; the last one that was noted first.
    pub fn pauses(&self) -> Result<Vec<Pause>, Error> {
        Ok(super::pause::read(&self.data)?.pauses)
    }

    /// What is in `failed/`, by name.
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

    /// What is in `archive/`, by name.
    pub fn archived(&self) -> Result<Vec<Failed>, Error> {
        let mut names = Vec::new();
        for_each_file(&*self.disk, &self.data.archive, |name| {
            if batch::is_batch_name(name) {
                names.push(name.to_owned());
            }
        })?;
        names.sort_unstable();
        let of = |name: String| {
            let records = self.head(&self.data.archive.join(&name))?.count;
            Ok(Failed {
                name,
                reason: "it has no destination".to_owned(),
                at: None,
                is_batch: true,
                is_ambiguous: false,
                records,
                attempts: 0,
            })
        };
        names.into_iter().map(of).collect()
    }

    /// What a batch says of itself: its first line.
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
                tracing::warn!(%error, "a reason that cannot be read");
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
            reason: reason.map_or_else(|| "no reason is noted".to_owned(), |reason| reason.why),
            name,
        }
    }
}
