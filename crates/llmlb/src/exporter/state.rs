//! State of the exporter, for `/status`.

use std::sync::{Mutex, PoisonError};
use std::time::SystemTime;

use serde_json::{Value, json};
use spool::Run;

use super::books::CheckedBooks;
use super::retention::Sizes;
use crate::lock::rfc3339;

/// State that the exporter's thread writes and `/status` reads.
#[derive(Debug)]
pub(crate) struct ExportState(Mutex<ExportReport>);

/// Data of the object `usage` in `/status`: docs/status-json.md.
#[derive(Clone, Debug, Default)]
pub(crate) struct ExportReport {
    /// URL of the receiver; `None` if records are archived.
    pub(crate) to: Option<String>,
    pub(crate) last_run: Option<SystemTime>,
    /// Time at which records were last delivered or archived.
    pub(crate) last_delivery: Option<SystemTime>,
    /// Number of records that were delivered or archived since the server started.
    pub(crate) delivered: u64,
    /// Number of batches that are not delivered yet.
    pub(crate) waiting: Option<u64>,
    /// Number of files in `failed/`.
    pub(crate) failed: Option<u64>,
    /// Member of the fleet that delivered when this server last tried to acquire the lease.
    pub(crate) deliverer: Option<String>,
    /// Problems of the last run.
    pub(crate) error: Option<String>,
    /// Sizes of `archive/` and `failed/`.
    pub(crate) sizes: Option<Sizes>,
    /// Result of the last conclusive check of the books.
    pub(crate) books: Option<CheckedBooks>,
}

impl ExportState {
    /// Returns the state of an exporter that has not run yet.
    pub(crate) fn new(to: Option<&str>) -> Self {
        Self(Mutex::new(ExportReport {
            to: to.map(str::to_owned),
            ..ExportReport::default()
        }))
    }

    /// Returns the state of an exporter that cannot start; `/status` shows the reason.
    pub(crate) fn broken(to: Option<&str>, why: &str) -> Self {
        let state = Self::new(to);
        state.update(|report| report.error = Some(why.to_owned()));
        state
    }

    pub(crate) fn report(&self) -> ExportReport {
        self.0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    pub(super) fn update<T>(&self, change: impl FnOnce(&mut ExportReport) -> T) -> T {
        change(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl ExportReport {
    /// Adds the records that a run delivered or archived.
    pub(super) fn add(&mut self, run: &Run, now: SystemTime) {
        let records = run.delivered.records + run.archived;
        if records > 0 {
            self.delivered += records;
            self.last_delivery = Some(now);
        }
    }

    /// Returns the object `usage` of `/status`.
    pub(crate) fn json(&self) -> Value {
        json!({
            "to": self.to,
            "last_run": self.last_run.map(rfc3339),
            "last_delivery": self.last_delivery.map(rfc3339),
            "delivered": self.delivered,
            "waiting": self.waiting,
            "failed": self.failed,
            "deliverer": self.deliverer,
            "error": self.error,
            "kept": self.sizes.as_ref().map(Sizes::json),
        })
    }
}
