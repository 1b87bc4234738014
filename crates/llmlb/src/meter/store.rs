//! Where records go: into the staging directory, from which they are consolidated and delivered.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use spool::{Durability, Staging};

use crate::episode::{Episode, Event};

/// A disk that failed is tried again after this time, while requests are rejected.
const AGAIN: Duration = Duration::from_secs(1);

/// Keeps a record of every request. It is with the kernel when [`Meter::keep_all`] returns, so that
/// not even kill -9 loses it; the disk follows some milliseconds later.
#[derive(Debug)]
pub(crate) struct Meter {
    /// The staging directory. `None`: nothing is recorded.
    dir: Option<PathBuf>,
    /// Not open as long as that cannot be had.
    staging: OnceLock<Staging>,
    /// A request that could not be recorded is not served.
    refuses: bool,
    kept: AtomicU64,
    lost: AtomicU64,
    /// How many of them are written down.
    lost_noted: AtomicU64,
    is_failing: AtomicBool,
    failures: Episode,
    trouble: Mutex<Trouble>,
}

/// What is known of a disk that fails.
#[derive(Debug, Default)]
struct Trouble {
    why: String,
    last_tried: Option<Instant>,
}

impl Meter {
    /// Records nothing.
    pub(crate) fn off() -> Self {
        Self {
            dir: None,
            staging: OnceLock::new(),
            refuses: false,
            kept: AtomicU64::new(0),
            lost: AtomicU64::new(0),
            lost_noted: AtomicU64::new(0),
            is_failing: AtomicBool::new(false),
            failures: Episode::default(),
            trouble: Mutex::default(),
        }
    }

    /// Records in this data directory. One that cannot be had now may be had later.
    pub(crate) fn new(data: &Path, refuses: bool) -> Self {
        Self {
            dir: Some(data.join("_staging")),
            refuses,
            ..Self::off()
        }
    }

    /// Opens the directory, if that has not been done.
    pub(crate) fn open(&self) -> Result<(), spool::Error> {
        if let (Some(dir), None) = (&self.dir, self.staging.get()) {
            let staging = Staging::open(dir)?;
            // Somebody else may have been faster; one is as good as another.
            let _ = self.staging.set(staging);
        }
        Ok(())
    }

    pub(crate) fn is_on(&self) -> bool {
        self.dir.is_some()
    }

    /// Stages records by one system call. Records that cannot be staged are counted as lost, and the loss
    /// is logged.
    pub(crate) fn keep_all(&self, records: &[spool::Record]) {
        if records.is_empty() || !self.is_on() {
            return;
        }
        let count = records.len() as u64;
        match self.stage(records) {
            Ok(()) => {
                self.kept.fetch_add(count, Ordering::Relaxed);
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

    /// Whether nothing is served just now, since it could not be recorded.
    pub(crate) fn is_refusing(&self) -> bool {
        let is_failing = || self.is_failing.load(Ordering::Relaxed);
        self.refuses && (is_failing() || self.unsynced().is_some())
    }

    /// Why records that the kernel has may not survive a power failure, if that is so.
    fn unsynced(&self) -> Option<spool::Error> {
        self.staging.get().and_then(Staging::trouble)
    }

    /// Why a request cannot be served, if it could not be recorded and must be.
    pub(crate) fn refusal(&self) -> Option<String> {
        if !self.refuses {
            return None;
        }
        if let Some(error) = self.unsynced() {
            return Some(error.to_string());
        }
        self.failure()
    }

    /// Why records are being lost, if that is so. A disk that failed is tried again here: without a
    /// request nothing else would find out that it works.
    fn failure(&self) -> Option<String> {
        if !self.is_failing.load(Ordering::Relaxed) {
            return None;
        }
        let mut trouble = self.trouble();
        let is_soon = |last: Instant| last.elapsed() < AGAIN;
        if trouble.last_tried.is_some_and(is_soon) {
            return Some(trouble.why.clone());
        }
        trouble.last_tried = Some(Instant::now());
        drop(trouble);
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

    /// How many records were kept since the start.
    pub(crate) fn kept(&self) -> u64 {
        self.kept.load(Ordering::Relaxed)
    }

    /// How many were lost.
    pub(crate) fn lost(&self) -> u64 {
        self.lost.load(Ordering::Relaxed)
    }

    /// Why records are being lost, or may not be on the disk, if that is so.
    pub(crate) fn error(&self) -> Option<String> {
        let failure = self.failure();
        failure.or_else(|| self.unsynced().map(|error| error.to_string()))
    }

    /// Makes what was recorded ready to be consolidated.
    pub(crate) fn seal(&self) {
        self.note_loss();
        if let Some(staging) = self.staging.get()
            && let Err(error) = staging.seal()
        {
            tracing::warn!("usage: {error}");
        }
    }

    fn record_loss(&self, count: u64, why: String) {
        let lost = self.lost.fetch_add(count, Ordering::Relaxed) + count;
        self.is_failing.store(true, Ordering::Relaxed);
        let now = Instant::now();
        match self.failures.occurred(now) {
            Some(Event::Began) => {
                tracing::error!("usage: {why}; records lost since the start: {lost}");
            }
            Some(Event::Continues { since, .. }) => tracing::error!(
                "usage: still, after {} s: {why}; records lost since the start: {lost}",
                since.as_secs()
            ),
            _ => {}
        }
        let mut trouble = self.trouble();
        trouble.last_tried = Some(now);
        trouble.why = why;
    }

    fn recovered(&self) {
        if self.is_failing.swap(false, Ordering::Relaxed) {
            let (lost, ended) = (self.lost(), self.failures.end(Instant::now()));
            self.note_loss();
            if let Some(Event::Ended { lasted, .. }) = ended {
                tracing::warn!(
                    "usage: records are kept again, after {} s; lost since the start: {lost}",
                    lasted.as_secs()
                );
            }
        }
    }

    /// Writes down how many were lost since that was last done: after a restart nobody would know.
    fn note_loss(&self) {
        let lost = self.lost();
        let new = lost - self.lost_noted.swap(lost, Ordering::Relaxed).min(lost);
        let data = self.dir.as_deref().and_then(Path::parent);
        if let Some(data) = data.filter(|_| new > 0) {
            let why = self.trouble().why.clone();
            if let Err(error) = super::loss::note(data, new, &why) {
                self.lost_noted.fetch_sub(new, Ordering::Relaxed);
                tracing::error!("usage: {new} lost records cannot be written down: {error}");
            }
        }
    }

    fn trouble(&self) -> std::sync::MutexGuard<'_, Trouble> {
        self.trouble.lock().unwrap_or_else(PoisonError::into_inner)
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
        let meter = Meter::new(place.path(), false);
        meter.keep_all(&[spool::Record::parse("{}").unwrap()]);
        assert!(meter.error().is_some());
        std::fs::remove_file(&in_the_way).unwrap();
        meter.trouble().last_tried = None; // As if it were some time ago.
        assert_eq!(meter.error(), None);
        assert_eq!((meter.kept(), meter.lost()), (0, 1));
    }
}
