//! Stages usage records in the data directory, from which they are consolidated and delivered.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use spool::{Durability, Staging};

use super::in_flight_list::{self, InFlightList};
use crate::config::{Instance, OnFailure};
use crate::episode::{Episode, Event};

/// Minimum interval between two attempts to stage again while requests are rejected (`on_failure =
/// "refuse"`), so that not every rejected request writes to a failing disk.
const RETRY_INTERVAL: Duration = Duration::from_secs(1);

/// Stages a usage record of every request. When [`Meter::persist`] returns, the kernel has the
/// records, so `kill -9` does not lose them; they are synced to disk some milliseconds later.
#[derive(Debug)]
pub(crate) struct Meter {
    dir: Option<PathBuf>,
    /// Name of this server, which its usage records contain.
    instance: String,
    /// Writer of the staging directory. Empty until the directory could be opened, which is tried
    /// again for every record.
    staging: OnceLock<Staging>,
    /// True with `usage.on_failure = "refuse"`: new requests are rejected while usage cannot be recorded.
    refuses: AtomicBool,
    persisted: AtomicU64,
    lost: AtomicU64,
    /// Number of failed attempts to stage records.
    errors: AtomicU64,
    /// Number of lost records that are in `lost.jsonl` already, so that none is added twice.
    lost_noted: AtomicU64,
    is_failing: AtomicBool,
    failures: Episode,
    last_failure: Mutex<StagingFailure>,
    /// List of the requests in flight, from which the next start writes records after a kill;
    /// `None` if it could not be created.
    in_flight: Option<Arc<InFlightList>>,
}

/// Last error of staging, and the time of the last attempt, from which the next one is due after
/// [`RETRY_INTERVAL`].
#[derive(Debug, Default)]
struct StagingFailure {
    error: String,
    last_attempt: Option<Instant>,
}

impl Meter {
    /// Returns a meter that writes no usage records.
    pub(crate) fn off() -> Self {
        Self {
            dir: None,
            instance: String::new(),
            staging: OnceLock::new(),
            refuses: AtomicBool::new(false),
            persisted: AtomicU64::new(0),
            lost: AtomicU64::new(0),
            errors: AtomicU64::new(0),
            lost_noted: AtomicU64::new(0),
            is_failing: AtomicBool::new(false),
            failures: Episode::default(),
            last_failure: Mutex::default(),
            in_flight: None,
        }
    }

    /// Returns a meter that stages records of this server in the data directory. If the staging
    /// directory cannot be opened yet, every record tries to open it again, so that a server starts
    /// even if its disk is full.
    pub(crate) fn new(data: &Path, on_failure: OnFailure, instance: &Instance) -> Self {
        Self {
            dir: Some(data.join("_staging")),
            instance: instance.as_str().to_owned(),
            refuses: AtomicBool::new(on_failure == OnFailure::Refuse),
            ..Self::off()
        }
    }

    pub(crate) fn open(&self) -> Result<(), spool::Error> {
        if let (Some(dir), None) = (&self.dir, self.staging.get()) {
            let staging = Staging::open(dir)?;
            // If another thread has opened the directory in the meantime, its `Staging` is used and
            // this one is dropped.
            let _ = self.staging.set(staging);
        }
        Ok(())
    }

    /// Creates the list of requests in flight, so that each has a record even if the server is
    /// killed. If that fails, requests are served without a list, and a warning is logged.
    pub(crate) fn list_in_flight(&mut self, host: Option<&str>) {
        let Some(data) = self.dir.as_deref().and_then(Path::parent) else {
            return;
        };
        match InFlightList::create(data, host, &self.instance) {
            Ok(list) => self.in_flight = Some(Arc::new(list)),
            Err(error) => tracing::warn!(
                "usage: cannot list requests in flight in {}: {error}; if this server is killed, they have no record",
                data.display()
            ),
        }
    }

    /// Stages a record for each request that was in flight when an earlier server was killed.
    pub(crate) fn recover(&self, host: Option<&str>) {
        if let (Some(dir), Some(staging)) = (&self.dir, self.staging.get())
            && let Some(data) = dir.parent()
        {
            in_flight_list::recover(data, host, staging);
        }
    }

    pub(crate) fn in_flight(&self) -> Option<&Arc<InFlightList>> {
        self.in_flight.as_ref()
    }

    pub(crate) fn instance(&self) -> &str {
        &self.instance
    }

    /// Applies `usage.on_failure` of a reloaded configuration: true to reject requests while usage
    /// cannot be recorded.
    pub(crate) fn set_refuses(&self, refuses: bool) {
        self.refuses.store(refuses, Ordering::Relaxed);
    }

    fn refuses(&self) -> bool {
        self.refuses.load(Ordering::Relaxed)
    }

    pub(crate) fn is_on(&self) -> bool {
        self.dir.is_some()
    }

    /// Stages records by one system call. Records that cannot be staged are counted as lost, and
    /// the loss is logged.
    pub(crate) fn persist(&self, records: &[spool::Record]) {
        if records.is_empty() || !self.is_on() {
            return;
        }
        let count = records.len() as u64;
        match self.stage(records) {
            Ok(()) => {
                self.persisted.fetch_add(count, Ordering::Relaxed);
                if self.is_failing.load(Ordering::Relaxed) {
                    self.recovered();
                }
            }
            Err(error) => self.record_loss(count, error.to_string()),
        }
    }

    fn stage(&self, records: &[spool::Record]) -> Result<(), spool::Error> {
        if self.staging.get().is_none() {
            self.open()?;
        }
        match self.staging.get() {
            Some(staging) => staging.stage_all(records, Durability::Process),
            None => Ok(()),
        }
    }

    /// True if new requests are rejected because usage records could not be staged or synced
    /// (`on_failure = "refuse"`).
    pub(crate) fn is_refusing(&self) -> bool {
        let is_failing = || self.is_failing.load(Ordering::Relaxed);
        self.refuses() && (is_failing() || self.unsynced().is_some())
    }

    /// Returns the error of the last sync, while it is not repaired: a power failure could lose
    /// records that the kernel has.
    fn unsynced(&self) -> Option<spool::Error> {
        self.staging.get().and_then(Staging::trouble)
    }

    /// Returns the error for which a new request must be rejected (`on_failure = "refuse"`); `None`
    /// if it may be served. Tries to stage again if the last attempt is at least [`RETRY_INTERVAL`]
    /// ago.
    pub(crate) fn refusal(&self) -> Option<String> {
        if !self.refuses() {
            return None;
        }
        if let Some(error) = self.unsynced() {
            return Some(error.to_string());
        }
        self.failure()
    }

    /// Returns the error of staging while records are lost. Tries to stage again: while all
    /// requests are rejected, no new record would detect that the disk works again.
    fn failure(&self) -> Option<String> {
        if !self.is_failing.load(Ordering::Relaxed) {
            return None;
        }
        let mut failure = self.last_failure();
        let is_recent = |last: Instant| last.elapsed() < RETRY_INTERVAL;
        if failure.last_attempt.is_some_and(is_recent) {
            return Some(failure.error.clone());
        }
        failure.last_attempt = Some(Instant::now());
        drop(failure);
        match self.check() {
            Ok(()) => {
                self.recovered();
                None
            }
            Err(error) => Some(error.to_string()),
        }
    }

    fn check(&self) -> Result<(), spool::Error> {
        self.open()?;
        self.staging.get().map_or(Ok(()), Staging::check)
    }

    /// Returns the number of usage records that were staged since the server started, for
    /// `/status`.
    pub(crate) fn persisted(&self) -> u64 {
        self.persisted.load(Ordering::Relaxed)
    }

    /// Returns the number of usage records that were lost since the server started, for `/status`.
    pub(crate) fn lost(&self) -> u64 {
        self.lost.load(Ordering::Relaxed)
    }

    /// Number of failed attempts to stage records since the server started.
    pub(crate) fn errors(&self) -> u64 {
        self.errors.load(Ordering::Relaxed)
    }

    /// True while records are lost or not synced to disk. Does not try to stage again.
    pub(crate) fn is_failing(&self) -> bool {
        self.is_failing.load(Ordering::Relaxed) || self.unsynced().is_some()
    }

    /// Returns the error of staging or syncing, while usage records are lost or not synced to disk.
    pub(crate) fn error(&self) -> Option<String> {
        let failure = self.failure();
        failure.or_else(|| self.unsynced().map(|error| error.to_string()))
    }

    /// Seals the open staging entry, so that its records can be consolidated. Records in an open
    /// entry are not.
    pub(crate) fn seal(&self) {
        self.note_loss();
        if let Some(staging) = self.staging.get()
            && let Err(error) = staging.seal()
        {
            tracing::warn!("usage: {error}");
        }
    }

    fn record_loss(&self, count: u64, error: String) {
        let lost = self.lost.fetch_add(count, Ordering::Relaxed) + count;
        self.errors.fetch_add(1, Ordering::Relaxed);
        self.is_failing.store(true, Ordering::Relaxed);
        let now = Instant::now();
        match self.failures.occurred(now) {
            Some(Event::Began) => {
                tracing::error!("usage: {error}; records lost since the start: {lost}");
            }
            Some(Event::Continues { since, .. }) => tracing::error!(
                "usage: problem persists after {} s: {error}; records lost since the start: {lost}",
                since.as_secs()
            ),
            _ => {}
        }
        let mut failure = self.last_failure();
        failure.last_attempt = Some(now);
        failure.error = error;
    }

    fn recovered(&self) {
        if self.is_failing.swap(false, Ordering::Relaxed) {
            let (lost, ended) = (self.lost(), self.failures.end(Instant::now()));
            self.note_loss();
            if let Some(Event::Ended { lasted, .. }) = ended {
                tracing::warn!(
                    "usage: records are staged again after {} s; lost since the start: {lost}",
                    lasted.as_secs()
                );
            }
        }
    }

    /// Appends the number of newly lost records to `lost.jsonl`, because the counters in memory do
    /// not survive a restart.
    fn note_loss(&self) {
        let lost = self.lost();
        let new = lost - self.lost_noted.swap(lost, Ordering::Relaxed).min(lost);
        let data = self.dir.as_deref().and_then(Path::parent);
        if let Some(data) = data.filter(|_| new > 0) {
            let cause = self.last_failure().error.clone();
            if let Err(error) = super::loss::note(data, new, &cause) {
                self.lost_noted.fetch_sub(new, Ordering::Relaxed);
                tracing::error!(
                    "usage: cannot add {new} lost records to {}: {error}",
                    super::loss::FILE
                );
            }
        }
    }

    fn last_failure(&self) -> MutexGuard<'_, StagingFailure> {
        let failure = self.last_failure.lock();
        failure.unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn error_ends_with_the_fault_and_not_with_the_next_request() {
        let place = tempfile::tempdir().unwrap();
        let in_the_way = place.path().join("_staging");
        std::fs::write(&in_the_way, "").unwrap();
        let meter = Meter::new(
            place.path(),
            OnFailure::Serve,
            &Instance::from_host(None, 1),
        );
        meter.persist(&[spool::Record::parse("{}").unwrap()]);
        assert!(meter.error().is_some());
        std::fs::remove_file(&in_the_way).unwrap();
        meter.last_failure().last_attempt = None; // As if the last attempt were long ago.
        assert_eq!(meter.error(), None);
        assert_eq!((meter.persisted(), meter.lost()), (0, 1));
    }
}
