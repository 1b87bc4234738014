//! State of the exporter, for `/status`.

use std::sync::{Mutex, PoisonError};
use std::time::SystemTime;

use serde_json::{Value, json};
use spool::Run;

use super::books::CheckedBooks;
use super::retention::Sizes;
use crate::lock::rfc3339;

#[derive(Debug)]
pub(crate) struct ExportState(Mutex<ExportReport>);

/// Data of the object `usage` of `/status` (docs/status-json.md).
#[derive(Clone, Debug, Default)]
pub(crate) struct ExportReport {
    /// URL of the receiver to which records are delivered; `None` if they are archived.
    pub(crate) to: Option<String>,
    pub(crate) last_run: Option<SystemTime>,
    /// Time at which records were last delivered or archived.
    pub(crate) last_delivery: Option<SystemTime>,
    /// Number of records that were delivered or archived since the server started.
    pub(crate) delivered: u64,
    pub(crate) waiting: Option<u64>,
    pub(crate) failed: Option<u64>,
    /// Member of the fleet that delivered instead of this server when this server last tried to
    /// acquire the lease.
    pub(crate) deliverer: Option<String>,
    /// Text of the problems of the last run; `None` if it had none.
    pub(crate) error: Option<String>,
    pub(crate) sizes: Option<Sizes>,
    /// Result of the last conclusive check of the books.
    pub(crate) books: Option<CheckedBooks>,
}

impl ExportState {
    pub(crate) fn new(to: Option<&str>) -> Self {
        Self(Mutex::new(ExportReport {
            to: to.map(str::to_owned),
            ..ExportReport::default()
        }))
    }

    /// Returns the state of an exporter that cannot start. `/status` shows the reason.
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
    pub(super) fn add(&mut self, run: &Run, now: SystemTime) {
        let records = run.delivered.records + run.archived;
        if records > 0 {
            self.delivered += records;
            self.last_delivery = Some(now);
        }
    }

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
