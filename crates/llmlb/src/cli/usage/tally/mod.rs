//! `llmlb usage` without a verb: how much was used, by whom and of what.

mod csv;
mod sums;
mod text;
mod when;

use std::time::{Duration, SystemTime};

use jiff::Timestamp;
use serde::Serialize;
use serde_json::{Map, Value};
use spool::Tally;

pub(super) use sums::By;
pub(super) use when::When;

use super::args::Report;
use super::json::{self, VERSION};
use super::place::Place;
use super::{counted, disk};
use crate::cli::exit::{self, Failure};
use crate::cli::output;
use crate::lock::rfc3339;
use crate::meter::loss;
use sums::{Row, Sums, grouped};
use when::in_words;

/// How far it looks back if nobody says.
const USUAL: Duration = Duration::from_secs(30 * 24 * 3600);

#[derive(Serialize)]
struct Document {
    version: u32,
    from: Option<String>,
    until: Option<String>,
    by: Vec<&'static str>,
    rows: Vec<Map<String, Value>>,
    total: Sums,
    /// Totals that could not be read.
    problems: Vec<String>,
    /// Records that could not be kept, ever.
    lost: u64,
}

pub(super) fn report(args: &Report, place: &Place) -> Result<u8, Failure> {
    place.must_exist_if_named()?;
    let (from, until) = span(args)?;
    let tally = spool::tally(place.dir(), Some(from), until).map_err(|error| disk(&error))?;
    let by = by(args);
    let rows = grouped(&tally.rows, &by);
    let total = Sums::total(&rows);
    if args.json {
        json::print(&document(&tally, &by, &rows, total, place)?)?;
    } else if args.csv {
        output::data(&csv::table(&by, &rows))?;
    } else if rows.is_empty() {
        output::data(&format!("No usage {}", in_time(&tally)))?;
        hints(args, place);
    } else {
        output::data(&format!("Usage {}\n", in_time(&tally)))?;
        output::data(&text::table(&by, &rows, &total))?;
    }
    place.tell_lost();
    match tally.problems.as_slice() {
        [] => Ok(exit::DONE),
        [first, ..] => {
            let count = counted(tally.problems.len() as u64, "file");
            let message = format!("{count} of the totals cannot be read and are missing: {first}");
            let verify = place.command("verify");
            Err(Failure::new(exit::FAILED, message).hint(format!("{verify} names them all")))
        }
    }
}

fn by(args: &Report) -> Vec<By> {
    let mut by: Vec<By> = Vec::new();
    for one in &args.by {
        if !by.contains(one) {
            by.push(*one);
        }
    }
    if by.is_empty() {
        by.push(By::Model);
    }
    by
}

fn span(args: &Report) -> Result<(SystemTime, Option<SystemTime>), Failure> {
    let usual = || {
        Timestamp::now()
            .checked_sub(USUAL)
            .unwrap_or(Timestamp::UNIX_EPOCH)
    };
    let since = args.since.map_or_else(usual, |when| when.start);
    let until = args.until.map(|when| when.end);
    if until.is_some_and(|until| until <= since) {
        let failure = Failure::new(exit::USAGE, "--until is not after --since");
        return Err(failure.hint("without --since, the last 30 days are looked at"));
    }
    Ok((since.into(), until.map(Into::into)))
}

/// `from 2026-11-01 to 2026-11-15 (UTC)`: with both ends, as people count days.
fn in_time(tally: &Tally) -> String {
    let from = tally.from.map_or_else(|| "?".to_owned(), in_words);
    let Some(until) = tally.until else {
        return format!("since {from} (UTC)");
    };
    let is_midnight = |time: SystemTime| in_words(time).len() == "2026-11-01".len();
    let last_day = until
        .checked_sub(Duration::from_secs(1))
        .filter(|_| is_midnight(until) && tally.from.is_some_and(is_midnight));
    match last_day.map(|last| in_words(last).chars().take(10).collect::<String>()) {
        Some(last) if last == from => format!("on {from} (UTC)"),
        Some(last) => format!("from {from} to {last} (UTC)"),
        None => format!("from {from} until {} (UTC)", in_words(until)),
    }
}

fn hints(args: &Report, place: &Place) {
    output::hint(&format!(
        "the data is looked for in {}",
        place.dir().display()
    ));
    output::hint("`llmlb serve` records the usage of every request, unless usage.enabled is false");
    output::hint("`llmlb usage stage` takes in records of other programs");
    if args.since.is_none() {
        output::hint("`--since 365d` looks further back");
    }
}

fn document(
    tally: &Tally,
    by: &[By],
    rows: &[Row],
    total: Sums,
    place: &Place,
) -> Result<Document, Failure> {
    let failed = |error| Failure::new(exit::FAILED, format!("cannot print JSON: {error}"));
    let mut documents = Vec::new();
    for row in rows {
        let names = row.names.iter().map(|name| Value::from(name.clone()));
        let names = by.iter().map(|by| by.name().to_owned()).zip(names);
        let mut document: Map<String, Value> = names.collect();
        if let Value::Object(sums) = serde_json::to_value(&row.sums).map_err(failed)? {
            document.extend(sums);
        }
        documents.push(document);
    }
    Ok(Document {
        version: VERSION,
        from: tally.from.map(rfc3339),
        until: tally.until.map(rfc3339),
        by: by.iter().map(|by| by.name()).collect(),
        rows: documents,
        total,
        problems: tally.problems.iter().map(ToString::to_string).collect(),
        lost: loss::total(place.dir()),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_span_is_said_as_people_say_it() {
        let time = |text: &str| text.parse::<Timestamp>().unwrap().into();
        let told = |from: &str, until: Option<&str>| {
            let mut tally = Tally::default();
            tally.from = Some(time(from));
            tally.until = until.map(time);
            in_time(&tally)
        };
        let first = "2026-11-01T00:00:00Z";
        assert_eq!(
            told("2026-11-15T05:00:00Z", None),
            "since 2026-11-15 05:00 (UTC)"
        );
        assert_eq!(told(first, None), "since 2026-11-01 (UTC)");
        assert_eq!(
            told(first, Some("2026-12-01T00:00:00Z")),
            "from 2026-11-01 to 2026-11-30 (UTC)"
        );
        assert_eq!(
            told(first, Some("2026-11-02T00:00:00Z")),
            "on 2026-11-01 (UTC)"
        );
        assert_eq!(
            told(first, Some("2026-11-02T06:00:00Z")),
            "from 2026-11-01 until 2026-11-02 06:00 (UTC)"
        );
    }
}
