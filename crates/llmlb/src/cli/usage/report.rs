//! What a delivery did, in words.

use spool::{Delivered, Run};

use super::counted;
use super::place::Place;
use crate::cli::exit::{self, Failure};
use crate::cli::time;

/// What was done.
pub(super) fn done(run: &Run, to: Option<&str>, place: &Place) -> String {
    let delivered = &run.delivered;
    match to {
        None if run.archived == 0 => "nothing to archive".to_owned(),
        None => format!(
            "{} put into {}",
            counted(run.archived, "record"),
            place.shown("archive")
        ),
        Some(_) if delivered.batches == 0 => {
            let is_idle = delivered.waiting == 0 && delivered.failed == 0;
            let words = if is_idle {
                "nothing to deliver"
            } else {
                "delivered nothing"
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

pub(super) fn skipped(pid: Option<u32>, place: &Place) -> String {
    let who = pid.map_or_else(|| "another process".to_owned(), |pid| format!("PID {pid}"));
    let from = place.dir().display();
    format!("skipped: {who} is delivering from {from} already")
}

/// What was not done, why, and what to do about it.
pub(super) fn problem(
    run: &Run,
    place: &Place,
    again: &str,
    is_cancelled: bool,
) -> Option<Failure> {
    let delivered = &run.delivered;
    let mut messages = Vec::new();
    let mut hints = Vec::new();
    if delivered.failed > 0 {
        let records = counted(delivered.failed, "record");
        messages.push(format!(
            "{records} could not be delivered, now in {}",
            place.shown("failed")
        ));
        hints.push(format!("{} says why", place.command("failed")));
    }
    if delivered.waiting > 0 {
        let batches = counted(delivered.waiting, "batch");
        messages.push(format!(
            "{batches} waiting: {}",
            why(delivered, is_cancelled)
        ));
        hints.push(advice(delivered, place, again));
    }
    let aside = run.consolidated.aside + delivered.damaged;
    if aside > 0 {
        messages.push(format!(
            "{aside} of what was staged could not be read, now in {}",
            place.shown("failed")
        ));
        if delivered.failed == 0 {
            hints.push(format!("{} says why", place.command("failed")));
        }
    }
    if run.consolidated.unreadable > 0 {
        let entries = run.consolidated.unreadable as u64;
        let first = run.unreadable.first();
        let first = first.map_or_else(String::new, |error| format!(", the first: {error}"));
        messages.push(format!(
            "staged entries that cannot be read and stay in place: {entries}{first}"
        ));
        hints.push(format!("{} names them", place.command("pending")));
    }
    if let Some(trouble) = &run.trouble {
        let failure = super::deliver::failed(trouble, place);
        messages.push(failure.message().to_owned());
        hints.extend(failure.hints().map(str::to_owned));
    }
    if messages.is_empty() {
        return None;
    }
    let failure = Failure::new(exit::FAILED, messages.join("; "));
    Some(hints.into_iter().fold(failure, Failure::hint))
}

fn why(delivered: &Delivered, is_cancelled: bool) -> String {
    match (&delivered.paused, &delivered.last_error) {
        (Some(pause), _) if pause.is_rejecting => {
            format!(
                "the receiver rejects every record that it was sent: {}",
                pause.why
            )
        }
        (Some(pause), _) if pause.is_misconfigured => {
            format!("the receiver takes nothing from us: {}", pause.why)
        }
        (Some(pause), _) => {
            let until = time::point(pause.until());
            format!("the receiver asked us to wait until {until}: {}", pause.why)
        }
        _ if is_cancelled => "it was ended by a signal".to_owned(),
        (None, Some(error)) => error.clone(),
        (None, None) => "they failed before, and their time has not come".to_owned(),
    }
}

fn advice(delivered: &Delivered, place: &Place, again: &str) -> String {
    match &delivered.paused {
        Some(pause) if pause.is_rejecting => format!(
            "nothing is lost: with 400 and 422 check --format and what the receiver expects of a \
             record, with 413 raise its limit for a request; {} shows its answers; then {again}",
            place.command("pending")
        ),
        Some(pause) if pause.is_misconfigured => format!(
            "nothing is lost: check the URL and the token (LLMLB_USAGE_TOKEN, --token-file), then \
             {again}"
        ),
        Some(_) => "nothing is lost: the first delivery after that goes on".to_owned(),
        None => {
            let pending = place.command("pending");
            format!("the next delivery tries again, {pending} shows when; {again} does not wait")
        }
    }
}
