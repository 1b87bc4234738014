//! Messages about the result of a delivery of usage records.

use spool::{Delivered, Run};

use super::counted;
use super::data_dir::DataDir;
use crate::cli::exit::{self, Failure};
use crate::cli::time;
use crate::exporter::RunEnd;

/// Describes the number of records that a run delivered or archived.
pub(super) fn done(run: &Run, to: Option<&str>, data: &DataDir) -> String {
    let delivered = &run.delivered;
    match to {
        None if run.archived == 0 => "no records to archive".to_owned(),
        None => format!(
            "{} moved to {}",
            counted(run.archived, "record"),
            data.shown("archive")
        ),
        Some(_) if delivered.batches == 0 => {
            let is_idle = delivered.waiting == 0 && delivered.failed == 0;
            let words = if is_idle {
                "no records to deliver"
            } else {
                "delivered no records"
            };
            words.to_owned()
        }
        Some(name) => format!(
            "delivered {} in {} to {name}",
            counted(delivered.records, "record"),
            counted(delivered.batches, "batch")
        ),
    }
}

pub(super) fn skipped(holder: &str, data: &DataDir) -> String {
    let from = data.dir().display();
    format!("skipped: {holder} is already delivering from {from}")
}

/// Describes the process that holds the delivery lock, for the message about a skipped run.
pub(super) fn holder(pid: Option<u32>) -> String {
    pid.map_or_else(|| "another process".to_owned(), |pid| format!("PID {pid}"))
}

/// Returns the error for records that a run could not deliver, with hints.
pub(super) fn problem(run: &Run, data: &DataDir, again: &str, end: RunEnd) -> Option<Failure> {
    let delivered = &run.delivered;
    let mut messages = Vec::new();
    let mut hints = Vec::new();
    if delivered.failed > 0 {
        let records = counted(delivered.failed, "record");
        messages.push(format!(
            "{records} could not be delivered; moved to {}",
            data.shown("failed")
        ));
        hints.push(format!("show the reasons with {}", data.command("failed")));
    }
    if delivered.waiting > 0 {
        let batches = counted(delivered.waiting, "batch");
        messages.push(format!("{batches} pending: {}", why(delivered, end)));
        hints.push(advice(delivered, data, again));
    }
    let aside = run.consolidated.aside + delivered.damaged;
    if aside > 0 {
        messages.push(format!(
            "damaged files or lines: {aside}; moved to {}",
            data.shown("failed")
        ));
        if delivered.failed == 0 {
            hints.push(format!("show the reasons with {}", data.command("failed")));
        }
    }
    if run.consolidated.unreadable > 0 {
        let entries = run.consolidated.unreadable as u64;
        let first = run.unreadable.first();
        let first = first.map_or_else(String::new, |error| format!(", the first: {error}"));
        messages.push(format!(
            "staged entries that cannot be read and stay in place: {entries}{first}"
        ));
        hints.push(format!("list them with {}", data.command("pending")));
    }
    if let Some(trouble) = &run.trouble {
        let failure = super::deliver::failed(trouble, data);
        messages.push(failure.message().to_owned());
        hints.extend(failure.hints().map(str::to_owned));
    }
    if messages.is_empty() {
        return None;
    }
    let failure = Failure::new(exit::FAILED, messages.join("; "));
    Some(hints.into_iter().fold(failure, Failure::hint))
}

fn why(delivered: &Delivered, end: RunEnd) -> String {
    match (&delivered.paused, &delivered.last_error) {
        (Some(pause), _) if pause.is_rejecting => {
            format!(
                "the receiver rejects every record that it was sent: {}",
                pause.why
            )
        }
        (Some(pause), _) if pause.is_misconfigured => {
            format!("delivery paused: the receiver responded {}", pause.why)
        }
        (Some(pause), _) => {
            let until = time::point(pause.until());
            format!(
                "delivery paused by the receiver until {until}: {}",
                pause.why
            )
        }
        _ if end == RunEnd::Cancelled => "the delivery was interrupted by a signal".to_owned(),
        (None, Some(error)) => error.clone(),
        (None, None) => "earlier attempts failed, and the next retry is not due yet".to_owned(),
    }
}

fn advice(delivered: &Delivered, data: &DataDir, again: &str) -> String {
    match &delivered.paused {
        Some(pause) if pause.is_rejecting => format!(
            "no record is lost: for 400 and 422 check --format and the fields that the receiver \
             expects, for 413 raise its limit for a request; show its responses with {}, then {again}",
            data.command("pending")
        ),
        Some(pause) if pause.is_misconfigured => format!(
            "no record is lost: check the URL and the token (LLMLB_USAGE_TOKEN, --token-file), then \
             {again}"
        ),
        Some(pause) => {
            let until = time::point(pause.until());
            format!("no record is lost; deliver again after {until} with {again}")
        }
        None => {
            let pending = data.command("pending");
            format!("show the time of the next retry with {pending}, or retry at once with {again}")
        }
    }
}
