//! Sums for a usage report, from totals by day, from totals by hour, or from single records.
//!
//! Totals are kept by day and, for 40 days, by hour, both in UTC. A report in another time zone
//! needs the totals by hour. If the zone's offset has a part of an hour, or the totals by hour are
//! no longer kept, the report needs the records themselves. If the records are not on disk either,
//! the report is refused, not rounded.

use jiff::Timestamp;
use spool::{Tally, TallyRow};

use super::super::data_dir::DataDir;
use super::super::disk;
use super::super::export::missing_words;
use super::{By, Period, Zone};
use crate::cli::exit::{self, Failure};
use crate::meter;

/// Returns the sums of usage in the period, divided as finely as `--by` and the time zone need.
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
    // Accept totals in UTC: the report extends the period to whole hours and days, and its first
    // line states the extended period.
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

/// True if every row of the report is a whole hour of the time zone, so that totals by hour
/// suffice.
fn has_hours(rows: &[TallyRow], zone: &Zone) -> bool {
    rows.iter().all(|row| {
        let start = row.start.and_then(|start| Timestamp::try_from(start).ok());
        start.is_some_and(|start| zone.has_whole_hours(start))
    })
}

/// True if the totals cover the requested period, extended at most to whole hours. Totals extended
/// to a day in UTC would include usage outside of a day in another time zone.
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
