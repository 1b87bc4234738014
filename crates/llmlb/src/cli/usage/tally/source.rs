//! Where the sums of a report come from: totals by day, totals by hour, or single records.
//!
//! Totals are kept by day and, for 40 days, by hour, both in UTC. A report in another time zone needs the
//! hours; where the zone's offset has a part of an hour, or the hours are no longer kept, it needs the
//! records themselves. If they are not on disk either, the report is refused, not rounded.

use jiff::Timestamp;
use spool::{Tally, TallyRow};

use super::super::data_dir::DataDir;
use super::super::disk;
use super::super::export::missing_words;
use super::{By, Period, Zone};
use crate::cli::exit::{self, Failure};
use crate::meter;

/// Returns the sums of the period, divided as finely as `by` and the zone need.
pub(super) fn tally(
    data: &DataDir,
    period: &Period,
    by: &[By],
    zone: &Zone,
) -> Result<Tally, Failure> {
    let needs_hours = by.contains(&By::Hour) || (by.contains(&By::Day) && !zone.is_utc());
    let (from, until) = (Some(period.from.into()), period.until.map(Into::into));
    let grouping = meter::grouping();
    let tally = if needs_hours {
        spool::tally_by_hour(data.dir(), &grouping, from, until)
    } else {
        spool::tally(data.dir(), &grouping, from, until)
    };
    let tally = tally.map_err(|error| disk(&error))?;
    let is_exact = if needs_hours {
        has_hours(&tally.rows, zone)
    } else {
        true
    };
    // In UTC, the report extends to whole hours and days, and its first line says so.
    if is_exact && (zone.is_utc() || has_edges(&tally, period, zone)) {
        return Ok(tally);
    }
    let (records, missing) =
        spool::tally_records(data.dir(), &grouping, from, until).map_err(|error| disk(&error))?;
    if missing.is_empty() {
        return Ok(records);
    }
    let name = zone.name();
    let missing = missing_words(&missing);
    let failure = Failure::new(
        exit::FAILED,
        format!(
            "the totals cannot be divided into {}, and not all records are on disk: {missing}",
            if zone.is_utc() {
                "hours".to_owned()
            } else {
                format!("days and hours in the time zone {name}")
            }
        ),
    );
    Err(failure
        .hint("totals are kept by hour in UTC, for 40 days, then by day in UTC")
        .hint("report whole days in UTC: omit --tz and `hour`"))
}

/// True if every row is a whole hour of the zone.
fn has_hours(rows: &[TallyRow], zone: &Zone) -> bool {
    rows.iter().all(|row| {
        let start = row.start.and_then(|start| Timestamp::try_from(start).ok());
        start.is_some_and(|start| zone.has_whole_hours(start))
    })
}

/// True if the report has exactly the requested period. A period that begins or ends within an hour is
/// extended to the hour, as in UTC; a period that begins or ends with a day of the zone is not.
fn has_edges(tally: &Tally, period: &Period, zone: &Zone) -> bool {
    const HOUR: i64 = 3600;
    let floor = |time: Timestamp| time.as_second().div_euclid(HOUR);
    let is_same = |asked: Timestamp, used: Option<std::time::SystemTime>, ceil: i64| {
        let used = used.and_then(|used| Timestamp::try_from(used).ok());
        zone.has_whole_hours(asked)
            && used.is_some_and(|used| {
                floor(used) - floor(asked) <= ceil && floor(used) >= floor(asked)
            })
    };
    is_same(period.from, tally.from, 0)
        && period
            .until
            .is_none_or(|until| is_same(until, tally.until, 1))
}
