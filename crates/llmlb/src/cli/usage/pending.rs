//! `llmlb usage pending`: lists the pending batches with their last error.

use std::time::SystemTime;

use serde::Serialize;
use spool::{Error, PendingBatch, SpoolManager};

use super::args::ListArgs;
use super::data_dir::DataDir;
use super::json::{self, Pause, VERSION};
use super::{counted, disk};
use crate::cli::exit::{self, Failure};
use crate::cli::progress::ProgressLine;
use crate::cli::table::aligned;
use crate::cli::{output, time};

/// Number of batch names that are read at once, which bounds memory.
const PAGE: usize = 1000;

#[derive(Serialize)]
struct PendingDocument {
    version: u32,
    paused: Option<Pause>,
    batches: Vec<PendingEntry>,
    unreadable: Vec<Unreadable>,
    foreign: Vec<String>,
    totals: PendingTotals,
}

/// A staged entry or batch that cannot be read now. It stays in the data directory and is retried
/// in every run.
#[derive(Serialize)]
struct Unreadable {
    path: String,
    error: String,
}

#[derive(Serialize)]
struct PendingEntry {
    name: String,
    records: u64,
    attempts: u32,
    rounds: u32,
    first_attempt: Option<String>,
    not_before: Option<String>,
    last_error: Option<String>,
    outcome_unknown: bool,
}

#[derive(Serialize)]
struct PendingTotals {
    batches: u64,
    records: u64,
    staged_entries: u64,
    unreadable: u64,
    foreign: u64,
}

pub(super) fn pending(args: &ListArgs, data: &DataDir, quiet: bool) -> Result<u8, Failure> {
    data.require()?;
    let spool = SpoolManager::new(data.dir());
    let bar = ProgressLine::new(quiet);
    let (batches, mut errors) = all(&spool, &bar).map_err(|error| disk(&error))?;
    let pauses = spool.pauses().map_err(|error| disk(&error))?;
    let paused = pauses.into_iter().next();
    let staged = spool::staged(data.dir()).map_err(|error| disk(&error))?;
    drop(bar);
    let totals = PendingTotals {
        batches: batches.len() as u64,
        records: batches.iter().map(|batch| batch.records).sum(),
        staged_entries: staged.entries,
        unreadable: errors.len() as u64 + staged.unreadable,
        foreign: staged.foreign,
    };
    errors.extend(staged.errors);
    let code = if totals.unreadable > 0 {
        exit::FAILED
    } else {
        exit::DONE
    };
    if args.json {
        json::print(&PendingDocument {
            version: VERSION,
            paused: paused.map(Pause::from),
            batches: batches.into_iter().map(PendingEntry::from).collect(),
            unreadable: errors.iter().map(Unreadable::from).collect(),
            foreign: staged.foreign_names,
            totals,
        })?;
        return Ok(code);
    }
    if let Some(pause) = &paused {
        output::data(&paused_line(pause, data))?;
    }
    if !batches.is_empty() {
        let now = SystemTime::now();
        let head = ["BATCH", "RECORDS", "ATTEMPTS", "NEXT", "LAST ERROR"];
        let mut rows = vec![head.map(str::to_owned).to_vec()];
        let pause = paused.map(|pause| pause.until());
        rows.extend(batches.iter().map(|batch| row(batch, pause, now)));
        output::data(&aligned(&rows))?;
    }
    output::data(&summary(&totals))?;
    for error in &errors {
        output::data(&error.to_string())?;
    }
    if totals.unreadable > 0 {
        let count = totals.unreadable;
        let line = format!(
            "files that cannot be read: {count}; they stay in place and are retried in every run"
        );
        output::data(&line)?;
    }
    if totals.foreign > 0 {
        let (files, names) = (counted(totals.foreign, "file"), staged.foreign_names);
        let names = crate::text::plain(&names.join(", ")).into_owned();
        let line = format!("{files} in _staging/ not named like an entry, left in place: {names}");
        output::data(&line)?;
    }
    Ok(code)
}

fn summary(totals: &PendingTotals) -> String {
    let batches = counted(totals.batches, "batch");
    let records = counted(totals.records, "record");
    let staged = counted(totals.staged_entries, "staged entry");
    match (totals.batches, totals.staged_entries) {
        (0, 0) => "no batches pending".to_owned(),
        (0, _) => format!("{staged} not consolidated yet"),
        (_, 0) => format!("{batches} with {records} pending"),
        (..) => format!("{batches} with {records} pending; {staged} not consolidated yet"),
    }
}

/// Returns all pending batches, and an error for each batch that cannot be read.
fn all(spool: &SpoolManager, bar: &ProgressLine) -> Result<(Vec<PendingBatch>, Vec<Error>), Error> {
    let (mut found, mut errors) = (Vec::new(), Vec::new());
    let mut last: Option<String> = None;
    loop {
        let names = spool.pending(last.as_deref(), PAGE)?;
        if names.is_empty() {
            return Ok((found, errors));
        }
        last = names.last().cloned();
        for name in names {
            match spool.pending_batch(&name) {
                Ok(waiting) => found.push(waiting),
                // Skip a batch whose file is missing: another process has delivered or moved the
                // batch since its name was listed.
                Err(error) if error.io_error().kind() == std::io::ErrorKind::NotFound => {}
                Err(error) => errors.push(error),
            }
            bar.show_text(&format!("read {}", counted(found.len() as u64, "batch")));
        }
    }
}

fn row(batch: &PendingBatch, pause: Option<SystemTime>, now: SystemTime) -> Vec<String> {
    let next = match batch.not_before.max(pause) {
        Some(at) => at.duration_since(now).map_or_else(
            |_| "now".to_owned(),
            |wait| format!("in {}", time::span(wait)),
        ),
        None => "now".to_owned(),
    };
    let mut error = batch.last_error.clone().unwrap_or_else(|| "-".to_owned());
    if batch.is_unknown {
        error += " (the receiver may already have this batch)";
    }
    vec![
        batch.name.clone(),
        batch.records.to_string(),
        batch.attempts.to_string(),
        next,
        error,
    ]
}

/// Formats a pause in the delivery of records. Delivery resumes by itself when the pause ends.
pub(super) fn paused_line(pause: &spool::Pause, data: &DataDir) -> String {
    let until = time::point(pause.until());
    let line = format!(
        "delivery to {} paused until {until}: {}",
        pause.to, pause.why
    );
    if pause.is_misconfigured {
        let again = data.command("deliver --to URL --now");
        format!("{line}; retry at once with {again}")
    } else {
        line
    }
}

impl From<&Error> for Unreadable {
    fn from(error: &Error) -> Self {
        Self {
            path: error.path().display().to_string(),
            error: error.io_error().to_string(),
        }
    }
}

impl From<PendingBatch> for PendingEntry {
    fn from(batch: PendingBatch) -> Self {
        Self {
            name: batch.name,
            records: batch.records,
            attempts: batch.attempts,
            rounds: batch.rounds,
            first_attempt: json::point(batch.first_attempt),
            not_before: json::point(batch.not_before),
            last_error: batch.last_error,
            outcome_unknown: batch.is_unknown,
        }
    }
}
