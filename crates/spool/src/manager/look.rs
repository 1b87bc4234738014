//! Looking at what waits and at what failed, without changing anything.

use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::time::{Duration, SystemTime};

use super::{BatchStore, Pause, SpoolManager, for_each_file};
use crate::batch::{self, Head};
use crate::error::Error;
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

impl SpoolManager {
    /// What is known of a batch that waits.
    pub fn waiting(&self, name: &str) -> Result<Waiting, Error> {
        let path = self.data.spool.join(name);
        let failed = |error| Error::read(&path, error);
        let mut head = Vec::new();
        let file = BufReader::new(File::open(&path).map_err(failed)?);
        // Its first line says how many records there are.
        file.take(batch::MOST_BYTES as u64)
            .read_until(b'\n', &mut head)
            .map_err(failed)?;
        let state = self.state(name)?;
        let wait = Duration::from_millis(state.waits_for);
        Ok(Waiting {
            name: name.to_owned(),
            records: Head::read(&head).map(|head| head.count).unwrap_or_default(),
            attempts: state.attempts,
            rounds: state.rounds,
            first_attempt: state.first_attempt.map(Into::into),
            not_before: state.waits_since.map(|since| since.after(wait).into()),
            is_unknown: state.is_unknown(),
            last_error: state.last_error,
        })
    }

    /// Until when nothing is sent, and why, for each destination; the last one that was noted first.
    pub fn pauses(&self) -> Result<Vec<Pause>, Error> {
        super::pause::read(&self.data)
    }

    /// What is in `failed/`, by name.
    pub fn failed(&self) -> Result<Vec<Failed>, Error> {
        let mut names = Vec::new();
        for_each_file(&self.data.failed, |name| {
            if !name.starts_with('.') && Reason::of(name).is_none() {
                names.push(name.to_owned());
            }
        })?;
        names.sort_unstable();
        Ok(names
            .into_iter()
            .map(|name| self.failed_one(name))
            .collect())
    }

    fn failed_one(&self, name: String) -> Failed {
        let reason = match Reason::read(&self.data.failed, &name) {
            Ok(reason) => reason,
            Err(error) => {
                tracing::warn!(%error, "a reason that cannot be read");
                None
            }
        };
        let batch = reason.as_ref().and_then(|reason| reason.batch.clone());
        Failed {
            is_batch: batch.is_some() && batch::is_name(&name),
            is_ambiguous: batch.as_ref().is_some_and(|batch| batch.ambiguous),
            records: batch.as_ref().map_or(0, |batch| batch.records),
            attempts: batch.map_or(0, |batch| batch.attempts),
            at: reason.as_ref().map(|reason| reason.at.into()),
            reason: reason.map_or_else(|| "no reason is noted".to_owned(), |reason| reason.why),
            name,
        }
    }
}
