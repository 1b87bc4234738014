//! `llmlb usage` without a verb: reports requests and tokens by team, key, model, backend, day or hour.

pub(super) mod csv;
mod source;
mod sums;
mod text;
mod when;
mod zone;

use std::time::{Duration, SystemTime};

use jiff::Timestamp;
use serde::Serialize;
use serde_json::{Map, Value};
use spool::Tally;

pub(super) use sums::By;
pub(super) use when::When;
pub(super) use zone::Zone;

use super::args::{PeriodArgs, ReportArgs};
use super::counted;
use super::data_dir::DataDir;
use super::json::{self, VERSION};
use crate::cli::exit::{self, Failure};
use crate::cli::output;
use crate::lock::rfc3339;
use crate::meter::loss;
use sums::{Row, Sums, grouped};
use when::in_words;

/// Default length of the report's period: the last 30 days.
const DEFAULT_PERIOD: Duration = Duration::from_secs(30 * 24 * 3600);

#[derive(Serialize)]
struct ReportDocument {
    version: u32,
    from: Option<String>,
    until: Option<String>,
    /// Time zone of the days and hours in the report.
    tz: String,
    by: Vec<&'static str>,
    rows: Vec<Map<String, Value>>,
    total: Sums,
    /// Errors of the files with daily totals that could not be read. Their usage is missing in the
    /// report.
    problems: Vec<String>,
    /// Number of records that could not be staged since the data directory exists. No total
    /// includes them.
    lost: u64,
}

pub(super) fn report(args: &ReportArgs, data: &DataDir) -> Result<u8, Failure> {
    data.require_if_named()?;
    let zone = args.period.tz.clone().unwrap_or_default();
    let period = period(&args.period)?;
    let by = by(args);
    let tally = source::tally(data, &period, &by, &zone)?;
    let rows = grouped(&tally.rows, &by, &zone);
    let total = Sums::total(&rows);
    if args.json {
        let mut document = document(&tally, &by, &rows, total, data)?;
        zone.name().clone_into(&mut document.tz);
        json::print(&document)?;
    } else if args.csv {
        output::data(&csv::table(&by, &rows))?;
    } else if rows.is_empty() {
        output::data(&format!("No usage {}", in_time(&tally, &zone)))?;
        hints(args, data);
    } else {
        output::data(&format!("Usage {}\n", in_time(&tally, &zone)))?;
        output::data(&text::table(&by, &rows, &total))?;
    }
    data.report_lost();
    match tally.problems.as_slice() {
        [] => Ok(exit::DONE),
        [first, ..] => {
            let count = counted(tally.problems.len() as u64, "file");
            let message =
                format!("{count} with totals cannot be read, so the report is incomplete: {first}");
            let verify = data.command("verify");
            Err(Failure::new(exit::FAILED, message)
                .hint(format!("list all problems with {verify}")))
        }
    }
}

fn by(args: &ReportArgs) -> Vec<By> {
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

/// Period of the report. The time `until` is not part of it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Period {
    pub(super) from: Timestamp,
    /// `None`: until now.
    pub(super) until: Option<Timestamp>,
}

/// Returns the period that `--since` and `--until` name in the time zone of `--tz`.
pub(super) fn period(args: &PeriodArgs) -> Result<Period, Failure> {
    let now = Timestamp::now();
    let zone = args.tz.clone().unwrap_or_default();
    let resolved = |when: Option<When>| match when {
        None => Ok(None),
        Some(when) => when.resolve(&zone, now).map(Some).ok_or_else(|| {
            Failure::new(exit::USAGE, "--since or --until is outside of the calendar")
        }),
    };
    let usual = now
        .checked_sub(DEFAULT_PERIOD)
        .unwrap_or(Timestamp::UNIX_EPOCH);
    let from = resolved(args.since)?.map_or(usual, |(start, _)| start);
    let until = resolved(args.until)?.map(|(_, end)| end);
    if until.is_some_and(|until| until <= from) {
        let failure = Failure::new(exit::USAGE, "--until is not later than --since");
        return Err(failure.hint("the default of --since is 30 days ago; set it: --since WHEN"));
    }
    Ok(Period { from, until })
}

/// Formats the period of the report, such as `from 2026-11-01 to 2026-11-15 (UTC)`. The last day is
/// included.
fn in_time(tally: &Tally, zone: &Zone) -> String {
    let in_words = |time| in_words(time, zone);
    let zone = zone.name();
    let from = tally.from.map_or_else(|| "?".to_owned(), in_words);
    let Some(until) = tally.until else {
        return format!("since {from} ({zone})");
    };
    let is_midnight = |time: SystemTime| in_words(time).len() == "2026-11-01".len();
    let last_day = until
        .checked_sub(Duration::from_secs(1))
        .filter(|_| is_midnight(until) && tally.from.is_some_and(is_midnight));
    match last_day.map(|last| in_words(last).chars().take(10).collect::<String>()) {
        Some(last) if last == from => format!("on {from} ({zone})"),
        Some(last) => format!("from {from} to {last} ({zone})"),
        None => format!("from {from} until {} ({zone})", in_words(until)),
    }
}

fn hints(args: &ReportArgs, data: &DataDir) {
    output::hint(&format!(
        "the data directory is {}; name another with `--data DIR`",
        data.dir().display()
    ));
    output::hint("record the usage of every request with `llmlb serve` and usage.enabled = true");
    output::hint("add records of other programs with `llmlb usage stage`");
    if args.period.since.is_none() {
        output::hint("extend the period with `--since 365d`");
    }
}

fn document(
    tally: &Tally,
    by: &[By],
    rows: &[Row],
    total: Sums,
    data: &DataDir,
) -> Result<ReportDocument, Failure> {
    let failed = |error| Failure::new(exit::FAILED, format!("cannot format JSON: {error}"));
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
    Ok(ReportDocument {
        version: VERSION,
        from: tally.from.map(rfc3339),
        until: tally.until.map(rfc3339),
        tz: String::new(),
        by: by.iter().map(|by| by.name()).collect(),
        rows: documents,
        total,
        problems: tally.problems.iter().map(ToString::to_string).collect(),
        lost: loss::total(data.dir()),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn period_is_shown_with_its_last_day() {
        let time = |text: &str| text.parse::<Timestamp>().unwrap().into();
        let shown = |from: &str, until: Option<&str>| {
            let mut tally = Tally::default();
            tally.from = Some(time(from));
            tally.until = until.map(time);
            in_time(&tally, &Zone::default())
        };
        let first = "2026-11-01T00:00:00Z";
        assert_eq!(
            shown("2026-11-15T05:00:00Z", None),
            "since 2026-11-15 05:00 (UTC)"
        );
        assert_eq!(shown(first, None), "since 2026-11-01 (UTC)");
        assert_eq!(
            shown(first, Some("2026-12-01T00:00:00Z")),
            "from 2026-11-01 to 2026-11-30 (UTC)"
        );
        assert_eq!(
            shown(first, Some("2026-11-02T00:00:00Z")),
            "on 2026-11-01 (UTC)"
        );
        assert_eq!(
            shown(first, Some("2026-11-02T06:00:00Z")),
            "from 2026-11-01 until 2026-11-02 06:00 (UTC)"
        );
    }
}
