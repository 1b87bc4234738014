//! JSON output of `usage deliver --json`: docs/billing.md.

use serde::Serialize;
use spool::Run;

use super::json::{self, Pause, VERSION};
use crate::cli::exit::Failure;

#[derive(Default, Serialize)]
struct DeliveredDocument {
    version: u32,
    to: Option<String>,
    /// True if another process holds the delivery lock, so this run was skipped.
    skipped: bool,
    /// Number of records that the receiver accepted in this run.
    delivered: u64,
    /// Number of batches that the receiver accepted in this run.
    batches: u64,
    /// Number of records that this run moved to `archive/` instead of delivering them
    /// (`--archive`).
    archived: u64,
    /// Number of records that could not be delivered and were moved to `failed/`.
    failed: u64,
    /// Number of files and lines that could not be read.
    unreadable: u64,
    /// Number of pending batches.
    waiting: u64,
    paused: Option<Pause>,
    last_error: Option<String>,
}

pub(super) fn print(run: &Run, to: Option<&str>) -> Result<(), Failure> {
    let delivered = &run.delivered;
    json::print(&DeliveredDocument {
        version: VERSION,
        to: to.map(str::to_owned),
        delivered: delivered.records,
        batches: delivered.batches,
        archived: run.archived,
        failed: delivered.failed,
        unreadable: run.consolidated.aside + run.consolidated.unreadable as u64 + delivered.damaged,
        waiting: delivered.waiting,
        paused: delivered.paused.clone().map(Pause::from),
        last_error: delivered.last_error.clone(),
        ..DeliveredDocument::default()
    })
}

pub(super) fn print_skipped(to: Option<&str>) -> Result<(), Failure> {
    json::print(&DeliveredDocument {
        version: VERSION,
        to: to.map(str::to_owned),
        skipped: true,
        ..DeliveredDocument::default()
    })
}
