//! What the exporter has done so far, for `/status`.

use std::sync::{Mutex, PoisonError};
use std::time::SystemTime;

use serde_json::{Value, json};
use spool::Run;

use super::kept::Sizes;
use crate::lock::rfc3339;

/// Written by the exporter, read by whoever asks.
#[derive(Debug)]
pub(crate) struct State(Mutex<Report>);

/// As it is shown: docs/status-json.md.
#[derive(Clone, Debug, Default)]
pub(crate) struct Report {
    /// The receiver; none if records are archived.
    pub(crate) to: Option<String>,
    pub(crate) last_run: Option<SystemTime>,
    /// When something was delivered, or archived.
    pub(crate) last_delivery: Option<SystemTime>,
    /// How many records were, since the start.
    pub(crate) delivered: u64,
    /// Batches that wait.
    pub(crate) waiting: Option<u64>,
    /// How many files are in `failed/`.
    pub(crate) failed: Option<u64>,
    /// What is wrong, if the last run found something.
    pub(crate) error: Option<String>,
    /// How large `archive/` and `failed/` are.
    pub(crate) sizes: Option<Sizes>,
}

impl State {
    /// Nothing was done yet.
    pub(crate) fn new(to: Option<&str>) -> Self {
        Self(Mutex::new(Report {
            to: to.map(str::to_owned),
            ..Report::default()
        }))
    }

    /// Nothing will be done, for this reason.
    pub(crate) fn broken(to: Option<&str>, why: &str) -> Self {
        let state = Self::new(to);
        state.note(|report| report.error = Some(why.to_owned()));
        state
    }

    pub(crate) fn report(&self) -> Report {
        self.0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    pub(super) fn note<T>(&self, change: impl FnOnce(&mut Report) -> T) -> T {
        change(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Report {
    /// Something was done.
    pub(super) fn add(&mut self, run: &Run, now: SystemTime) {
        let records = run.delivered.records + run.archived;
        if records > 0 {
            self.delivered += records;
            self.last_delivery = Some(now);
        }
    }

    /// For programs.
    pub(crate) fn json(&self) -> Value {
        json!({
            "to": self.to,
            "last_run": self.last_run.map(rfc3339),
            "last_delivery": self.last_delivery.map(rfc3339),
            "delivered": self.delivered,
            "waiting": self.waiting,
            "failed": self.failed,
            "error": self.error,
            "kept": self.sizes.as_ref().map(Sizes::json),
        })
    }
}
