//! The records of a span of time that are still on disk: staged, pending, archived and failed ones, each
//! once, while other processes work.
//!
//! Delivered batches are deleted, and limits delete files of `archive/` and `failed/`, so an export may
//! lack records of its span. To report this, it compares the number of records in the totals with the
//! number that it found, hour by hour. The totals are read first, so that records that are deleted
//! during the export are reported as missing, too.
//!
//! No lock is taken, because an export may take long and must not delay delivery. Files that move are
//! found by a second listing, and a record that was found twice is recognized by its id.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::ops::ControlFlow;
use std::path::Path;
use std::time::{Duration, SystemTime};

use uuid::Uuid;

use crate::data_dir::DataDir;
use crate::error::Error;
use crate::record::Record;
use crate::record_files;
use crate::tally::{self, Tally};
use crate::time::Moment;
use crate::totals::{self, Grouping, Groups};

/// Maximum number of listings of the directories. Later listings find files that moved meanwhile.
const MAX_LISTINGS: usize = 4;

/// Length of the parts in which [`tally_records`] sums. The offset of every time zone from UTC is a
/// multiple of it.
const QUARTER: Duration = Duration::from_secs(15 * 60);

/// Numbers of exported and of missing records, and the errors of files that could not be read.
#[derive(Debug, Default)]
#[non_exhaustive]
pub struct Exported {
    /// Number of records that were exported.
    pub records: u64,
    /// Hours and days in UTC whose totals have more records than were found on disk.
    pub missing: Vec<MissingRecords>,
    /// Errors of files that cannot be read. The export lacks their records.
    pub problems: Vec<Error>,
}

/// Number of records of an hour or a day that are no longer on disk.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct MissingRecords {
    /// Hour `2026-11-16T13` or day `2026-11-16` in UTC.
    pub period: String,
    /// Number of missing records.
    pub records: u64,
}

/// Calls `each` with the records of a span of time that are still on disk, by the time of their ids.
/// The order is that in which the records were staged, per producer; it is nearly the order of time. A
/// break of `each` ends the export. The ids of the span are kept in memory: about 35 bytes for a record.
///
/// ```
/// use std::ops::ControlFlow;
/// use spool::{Durability, Record, Staging, export};
///
/// let data = tempfile::tempdir()?;
/// let staging = Staging::open(data.path().join("_staging"))?;
/// staging.stage(&Record::parse(r#"{"bytes":42}"#)?, Durability::Process)?;
///
/// let mut lines = Vec::new();
/// let done = export(data.path(), None, None, |record| {
///     lines.push(record.json().to_owned());
///     ControlFlow::Continue(())
/// })?;
/// assert_eq!((lines.len(), done.records), (1, 1));
/// assert!(done.missing.is_empty());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn export(
    data: &Path,
    from: Option<SystemTime>,
    until: Option<SystemTime>,
    each: impl FnMut(&Record) -> ControlFlow<()>,
) -> Result<Exported, Error> {
    export_in(&DataDir::new(data), from, until, each)
}

/// Sums the records that are still on disk by quarters of an hour: for periods that are not made of
/// whole hours in UTC, and for days whose totals by hour are deleted.
pub fn tally_records(
    data: &Path,
    grouping: &Grouping,
    from: Option<SystemTime>,
    until: Option<SystemTime>,
) -> Result<(Tally, Vec<MissingRecords>), Error> {
    let mut periods = BTreeMap::<String, Groups>::new();
    let done = export(data, from, until, |record| {
        if let Ok(fields) = grouping.read(record) {
            let start = Moment::from_id(record.id()).floor(QUARTER).to_string();
            let period = start.get(..16).unwrap_or(&start).to_owned();
            let groups = periods.entry(period).or_default();
            groups.add_record(grouping, &fields);
        }
        ControlFlow::Continue(())
    })?;
    let mut tally = Tally::default();
    tally.rows = (periods.into_iter())
        .flat_map(|(period, groups)| tally::rows_of(&period, groups))
        .collect();
    (tally.from, tally.until) = (from, until);
    tally.problems = done.problems;
    Ok((tally, done.missing))
}

pub(crate) fn export_in(
    data: &DataDir,
    from: Option<SystemTime>,
    until: Option<SystemTime>,
    mut each: impl FnMut(&Record) -> ControlFlow<()>,
) -> Result<Exported, Error> {
    let mut tally = tally::tally_by_hour_in(data, &Grouping::default(), from, until)?;
    let mut export = Export {
        now: SystemTime::now().into(),
        exact: (from.map(Into::into), until.map(Into::into)),
        counted: (tally.from.map(Into::into), tally.until.map(Into::into)),
        whole_days: (tally.rows.iter())
            .filter(|row| row.start.is_none())
            .map(|row| row.day.clone())
            .collect(),
        found: BTreeMap::new(),
        seen: HashSet::new(),
        done: Exported::default(),
        each: &mut each,
    };
    export.done.problems = std::mem::take(&mut tally.problems);
    let mut listed = BTreeSet::new();
    for _ in 0..MAX_LISTINGS {
        let mut files = record_files::list(data)?;
        files.retain(|file| listed.insert((file.path.clone(), file.entry.is_none())));
        if files.is_empty() {
            break;
        }
        // The names of batches begin with that of their first entry, so all names sort by age.
        files.sort_by(|a, b| a.path.file_name().cmp(&b.path.file_name()));
        for file in &files {
            match file.read(data, &mut |record| export.add(record)) {
                Ok(ControlFlow::Continue(())) => {}
                Ok(ControlFlow::Break(())) => return Ok(export.done),
                Err(error) => export.done.problems.push(error),
            }
        }
    }
    Ok(export.finish(&tally))
}

struct Export<'a> {
    now: Moment,
    /// Requested span. Its end is not part of it.
    exact: (Option<Moment>, Option<Moment>),
    /// Span of the hours and days whose records are counted.
    counted: (Option<Moment>, Option<Moment>),
    /// Days of which only the number of all records is known.
    whole_days: BTreeSet<String>,
    /// Number of records that were found, by hour or by whole day.
    found: BTreeMap<String, u64>,
    seen: HashSet<Uuid>,
    done: Exported,
    each: &'a mut dyn FnMut(&Record) -> ControlFlow<()>,
}

impl Export<'_> {
    fn add(&mut self, record: &Record) -> ControlFlow<()> {
        let time = Moment::from_id(record.id());
        let hour = totals::hour_of(record.id(), self.now);
        // Parse the record's JSON, and skip the record if it is invalid: a trusted producer may
        // have staged it unparsed, and consolidation will move it to `failed/`.
        let is_counted = is_in(hour, self.counted);
        if !is_counted || record.fields(|_| false).is_err() || !self.seen.insert(record.id()) {
            return ControlFlow::Continue(());
        }
        let day = hour.day();
        let is_whole = self.whole_days.contains(&day);
        let period = if is_whole { day } else { hour.hour() };
        *self.found.entry(period).or_default() += 1;
        if !is_in(time, self.exact) {
            return ControlFlow::Continue(());
        }
        self.done.records += 1;
        (self.each)(record)
    }

    /// Compares the records that were found with the totals.
    fn finish(mut self, tally: &Tally) -> Exported {
        let mut expected = BTreeMap::<String, u64>::new();
        for row in &tally.rows {
            let hour = |start| Moment::from(start).hour();
            let period = row.start.map_or_else(|| row.day.clone(), hour);
            *expected.entry(period).or_default() += row.records;
        }
        for (period, expected) in expected {
            let found = self.found.get(&period).copied().unwrap_or_default();
            if let Some(records) = expected.checked_sub(found).filter(|missing| *missing > 0) {
                let missing = MissingRecords { period, records };
                self.done.missing.push(missing);
            }
        }
        self.done
    }
}

/// True if a time is in a span, whose end is not part of it.
fn is_in(time: Moment, (from, until): (Option<Moment>, Option<Moment>)) -> bool {
    from.is_none_or(|from| time >= from) && until.is_none_or(|until| time < until)
}
