//! What `deliver --json` prints: docs/billing.md.

use serde::Serialize;
use spool::Run;

use super::json::{self, Pause, VERSION};
use crate::cli::exit::Failure;

#[derive(Default, Serialize)]
struct Document {
    version: u32,
    to: Option<String>,
    /// Another process delivers: nothing was done.
    skipped: bool,
    /// Records and batches that the receiver has now.
    delivered: u64,
    batches: u64,
    /// Records that were archived.
    archived: u64,
    /// Records that were put into `failed/`, and things that could not be read.
    failed: u64,
    unreadable: u64,
    /// Batches that still wait.
    waiting: u64,
    paused: Option<Pause>,
    last_error: Option<String>,
}

pub(super) fn print(run: &Run, to: Option<&str>) -> Result<(), Failure> {
    let delivered = &run.delivered;
    json::print(&Document {
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
        ..Document::default()
    })
}

pub(super) fn print_skipped(to: Option<&str>) -> Result<(), Failure> {
    json::print(&Document {
        version: VERSION,
        to: to.map(str::to_owned),
        skipped: true,
        ..Document::default()
    })
}
