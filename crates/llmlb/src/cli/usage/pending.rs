//! `llmlb usage pending`: the batches that wait for delivery, and why.

use std::time::SystemTime;

use serde::Serialize;
use spool::{BatchStore, SpoolManager, Waiting};

use super::args::Look;
use super::json::{self, Pause, VERSION};
use super::place::Place;
use super::{counted, disk};
use crate::cli::exit::{self, Failure};
use crate::cli::progress::Bar;
use crate::cli::table::aligned;
use crate::cli::{output, time};

/// So many names are asked for at once.
const PAGE: usize = 1000;

#[derive(Serialize)]
struct Document {
    version: u32,
    paused: Option<Pause>,
    batches: Vec<Entry>,
    totals: Totals,
}

#[derive(Serialize)]
struct Entry {
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
struct Totals {
    batches: u64,
    records: u64,
    staged_entries: u64,
}

pub(super) fn pending(args: &Look, place: &Place, quiet: bool) -> Result<u8, Failure> {
    place.must_exist()?;
    let spool = SpoolManager::of(place.dir());
    let bar = Bar::new(quiet);
    let batches = all(&spool, &bar).map_err(|error| disk(&error))?;
    let pauses = spool.pauses().map_err(|error| disk(&error))?;
    let paused = pauses.into_iter().next();
    let staged = spool::staged(place.dir()).map_err(|error| disk(&error))?;
    drop(bar);
    let totals = Totals {
        batches: batches.len() as u64,
        records: batches.iter().map(|batch| batch.records).sum(),
        staged_entries: staged.entries,
    };
    if args.json {
        json::print(&Document {
            version: VERSION,
            paused: paused.map(Pause::from),
            batches: batches.into_iter().map(Entry::from).collect(),
            totals,
        })?;
        return Ok(exit::DONE);
    }
    if let Some(pause) = &paused {
        output::data(&paused_line(pause, place))?;
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
    Ok(exit::DONE)
}

fn summary(totals: &Totals) -> String {
    let batches = counted(totals.batches, "batch");
    let records = counted(totals.records, "record");
    let staged = counted(totals.staged_entries, "staged entry");
    match (totals.batches, totals.staged_entries) {
        (0, 0) => "nothing waits".to_owned(),
        (0, _) => format!("{staged} not in batches yet"),
        (_, 0) => format!("{batches} with {records} waiting"),
        (..) => format!("{batches} with {records} waiting; {staged} not in batches yet"),
    }
}

fn all(spool: &SpoolManager, bar: &Bar) -> Result<Vec<Waiting>, spool::Error> {
    let mut found: Vec<Waiting> = Vec::new();
    loop {
        let last = found.last().map(|batch| batch.name.as_str());
        let names = spool.pending(last, PAGE)?;
        if names.is_empty() {
            return Ok(found);
        }
        for name in names {
            // One that was delivered meanwhile is no error.
            match spool.waiting(&name) {
                Err(error) if error.io_error().kind() == std::io::ErrorKind::NotFound => {}
                waiting => found.push(waiting?),
            }
            bar.say(&format!(
                "looked at {}",
                counted(found.len() as u64, "batch")
            ));
        }
    }
}

fn row(batch: &Waiting, pause: Option<SystemTime>, now: SystemTime) -> Vec<String> {
    let next = match batch.not_before.max(pause) {
        Some(at) => at.duration_since(now).map_or_else(
            |_| "now".to_owned(),
            |wait| format!("in {}", time::span(wait)),
        ),
        None => "now".to_owned(),
    };
    let mut error = batch.last_error.clone().unwrap_or_else(|| "-".to_owned());
    if batch.is_unknown {
        error += " (it may have arrived)";
    }
    vec![
        batch.name.clone(),
        batch.records.to_string(),
        batch.attempts.to_string(),
        next,
        error,
    ]
}

/// Every pause ends by itself: delivery is tried again then.
pub(super) fn paused_line(pause: &spool::Pause, place: &Place) -> String {
    let until = time::point(pause.until());
    let line = format!(
        "delivery to {} is paused until {until}: {}",
        pause.to, pause.why
    );
    if pause.is_misconfigured {
        let again = place.command("deliver --to URL --now");
        format!("{line}; {again} tries again at once")
    } else {
        line
    }
}

impl From<Waiting> for Entry {
    fn from(batch: Waiting) -> Self {
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
