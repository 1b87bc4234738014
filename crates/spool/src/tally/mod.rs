//! Sums of the records of a span of time: consolidated and staged records, each counted once, while
//! other processes stage and consolidate.
//!
//! A tally takes no lock, unless consolidations follow each other too quickly, and changes nothing.
//! It reads the totals, then the staged entries, then checks that the totals are still the same. If
//! they changed, it starts again. This counts each record once: an entry is deleted only after its
//! records are in the totals. If the totals did not change while the entries were read, an entry
//! that still existed is in the totals only if it belongs to the current snapshot, and then the
//! file of its day names that snapshot.

mod consolidated;
mod hour_span;
mod staged_records;

use std::collections::BTreeMap;
use std::path::Path;
use std::thread;
use std::time::{Duration, SystemTime};

use crate::data_dir::DataDir;
use crate::entry_journal;
use crate::error::Error;
use crate::snapshot::Snapshot;
use crate::staging_lock::StagingLock;
use crate::totals::{ExactSum, Grouping, Groups};
use consolidated::ConsolidatedTotals;
use hour_span::HourSpan;
use staged_records::StagedRecords;

/// Maximum number of attempts of a tally. An attempt fails if a consolidation changes the totals
/// while it reads them.
const MAX_ATTEMPTS: u32 = 20;
/// Number of attempts after which the tally holds a read lock that stops consolidation.
const ATTEMPTS_WITHOUT_LOCK: u32 = 10;
const PAUSE: Duration = Duration::from_millis(20);

/// Sums of the records of a span of time.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct Tally {
    /// Rows by day or hour, then by the values of the group fields in the grouping's order.
    pub rows: Vec<TallyRow>,
    /// Sums by the fields of [`Grouping::exact`], by day.
    pub exact: Vec<ExactRow>,
    /// Start of the span: the requested time rounded down to the hour, or to the day where the
    /// totals by hour are incomplete or deleted.
    pub from: Option<SystemTime>,
    /// End of the span, which is not part of it: the requested time, rounded up to the hour or the
    /// day as `from` is rounded down.
    pub until: Option<SystemTime>,
    /// Errors of files of totals and of staged entries that cannot be read. The tally lacks their
    /// records.
    pub problems: Vec<Error>,
}

/// Sums of the records of one day, or of a part of it, that have the same values of the group fields.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct TallyRow {
    /// Day in UTC: `2026-11-16`.
    pub day: String,
    /// Start of the hour whose records the row sums; of the quarter of an hour in
    /// [`tally_records`](crate::tally_records). `None`: the row sums the records of the day.
    pub start: Option<SystemTime>,
    /// Value of each group field; `None` if the records have no such text. A field is missing if
    /// the records were consolidated with a grouping that does not have it.
    pub group: BTreeMap<String, Option<String>>,
    /// Number of records.
    pub records: u64,
    /// Sum of the records' totals ([`Grouping::total_from`]).
    pub total: u64,
    /// Sum of each field that the grouping sums, by the field's name.
    pub sums: BTreeMap<String, u64>,
    /// Number of records by the name of a counted field, and by its value.
    pub counts: BTreeMap<String, BTreeMap<String, u64>>,
}

/// Exact sum of the records of one day with the same values of the exact fields
/// ([`Grouping::exact`]).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ExactRow {
    /// Day in UTC: `2026-11-16`.
    pub day: String,
    /// Value of each exact field, in the order of the grouping.
    pub values: Vec<Option<String>>,
    /// Number of records.
    pub records: u64,
    /// Sum of the records' totals ([`Grouping::total_from`]).
    pub total: u64,
}

impl TallyRow {
    /// Returns the value of a group field, if the records have one.
    pub fn value(&self, field: &str) -> Option<&str> {
        self.group.get(field)?.as_deref()
    }
}

/// Sums the records of a span of time, by the time of their ids. Staged records are grouped by
/// `grouping`, and consolidated ones as they were consolidated. A missing data directory has no
/// records.
///
/// ```
/// use spool::{Durability, Grouping, Record, Staging, tally};
///
/// let data = tempfile::tempdir()?;
/// let staging = Staging::open(data.path().join("_staging"))?;
/// for _ in 0..2 {
///     let record = Record::parse(r#"{"customer":"acme","bytes":42}"#)?;
///     staging.stage(&record, Durability::Process)?;
/// }
///
/// let grouping = Grouping::by(["customer"]).sum(["bytes"]);
/// let tally = tally(data.path(), &grouping, None, None)?;
/// assert_eq!(tally.rows[0].value("customer"), Some("acme"));
/// assert_eq!(tally.rows[0].sums["bytes"], 84);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn tally(
    data: &Path,
    grouping: &Grouping,
    from: Option<SystemTime>,
    until: Option<SystemTime>,
) -> Result<Tally, Error> {
    tally_in(&DataDir::new(data), grouping, from, until)
}

/// Like [`tally`], with the sums of each hour. A day whose totals by hour are incomplete or deleted has
/// rows of the whole day: their `start` is `None`.
pub fn tally_by_hour(
    data: &Path,
    grouping: &Grouping,
    from: Option<SystemTime>,
    until: Option<SystemTime>,
) -> Result<Tally, Error> {
    tally_by_hour_in(&DataDir::new(data), grouping, from, until)
}

pub(crate) fn tally_in(
    data: &DataDir,
    grouping: &Grouping,
    from: Option<SystemTime>,
    until: Option<SystemTime>,
) -> Result<Tally, Error> {
    tally_span(data, grouping, &HourSpan::new(from, until))
}

pub(crate) fn tally_by_hour_in(
    data: &DataDir,
    grouping: &Grouping,
    from: Option<SystemTime>,
    until: Option<SystemTime>,
) -> Result<Tally, Error> {
    tally_span(data, grouping, &HourSpan::new(from, until).by_hour())
}

fn tally_span(data: &DataDir, grouping: &Grouping, span: &HourSpan) -> Result<Tally, Error> {
    let mut lock = None;
    let mut tally = Ok(None);
    for attempt in 0..MAX_ATTEMPTS {
        if attempt > 0 {
            thread::sleep(PAUSE);
        }
        if attempt >= ATTEMPTS_WITHOUT_LOCK && lock.is_none() {
            lock = StagingLock::read_lock(&data.staging).ok().flatten();
        }
        tally = try_tally(data, grouping, span, || {});
        if !matches!(tally, Ok(None)) {
            break;
        }
    }
    drop(lock);
    tally?.ok_or_else(|| {
        let busy = std::io::Error::from(std::io::ErrorKind::ResourceBusy);
        Error::new("add up", &data.usage, busy)
    })
}

/// Returns the snapshot that is being consolidated.
fn current_snapshot(data: &DataDir) -> Result<Option<Snapshot>, Error> {
    match Snapshot::read(&*data.disk, &data.staging) {
        // A damaged snapshot counts as no snapshot: the next consolidation discards it and freezes
        // a new one.
        Err(error) if error.is_damage() => Ok(None),
        snapshot => snapshot,
    }
}

/// Reads the totals and the staged records once. Returns `None` if records were consolidated
/// meanwhile. A test consolidates in `meanwhile`.
fn try_tally(
    data: &DataDir,
    grouping: &Grouping,
    span: &HourSpan,
    meanwhile: impl FnOnce(),
) -> Result<Option<Tally>, Error> {
    let mut totals = ConsolidatedTotals::read(data, grouping, span)?;
    meanwhile();
    // Read the staged entries after the totals, and check at the end that the totals have not
    // changed. Otherwise a record that is consolidated meanwhile could be counted twice or not at
    // all.
    let snapshot = current_snapshot(data)?;
    let mut rows = totals.take_rows();
    let mut problems = std::mem::take(&mut totals.problems);
    StagedRecords::new(data, grouping, span, &totals, snapshot.as_ref())
        .add_to(&mut rows, &mut problems)?;
    let unfinished = snapshot.as_ref().filter(|snapshot| !snapshot.is_written);
    for (day, expected) in entry_journal::days(data, unfinished.map(|snapshot| snapshot.id))? {
        // A damaged file of totals is in `problems` already, and is not reported twice.
        let is_known = |gap: &Error| problems.iter().any(|error| error.path() == gap.path());
        if span.has_some_of(&day)
            && let Some(gap) = totals.gap(data, &day, expected)
            && !is_known(&gap)
        {
            problems.push(gap);
        }
    }
    // Return `None`, so that the tally is repeated, if the snapshot or the totals have changed. The
    // journal has the ids of a new snapshot before the totals have its records. Records that were
    // read in between were skipped as repetitions, although the totals lack them.
    let state = |snapshot: &Snapshot| (snapshot.id, snapshot.is_written);
    let is_same = current_snapshot(data)?.as_ref().map(state) == snapshot.as_ref().map(state);
    if !is_same || !totals.are_current(data, span)? {
        return Ok(None);
    }
    let span = totals.reported_span(span);
    Ok(Some(Tally {
        exact: (rows.iter())
            .flat_map(|(day, groups)| exact_rows_of(day, groups))
            .collect(),
        rows: rows
            .into_iter()
            .flat_map(|(period, groups)| rows_of(&period, groups))
            .collect(),
        from: span.from.map(Into::into),
        until: span.until.map(Into::into),
        problems,
    }))
}

fn exact_rows_of(period: &str, groups: &Groups) -> Vec<ExactRow> {
    let day = period.get(..10).unwrap_or(period);
    let row = |(values, sum): (&[Option<String>], ExactSum)| ExactRow {
        day: day.to_owned(),
        values: values.to_vec(),
        records: sum.records,
        total: sum.total,
    };
    groups.exact().iter().map(row).collect()
}

/// Returns the rows of a period: a day `2026-11-16`, an hour `2026-11-16T13`, or a part of an hour
/// `2026-11-16T13:30`.
pub(crate) fn rows_of(period: &str, groups: Groups) -> Vec<TallyRow> {
    let start = match period.len() {
        10 => None,
        13 => format!("{period}:00Z").parse::<jiff::Timestamp>().ok(),
        _ => format!("{period}Z").parse::<jiff::Timestamp>().ok(),
    };
    let day = period.get(..10).unwrap_or(period);
    let rows = groups.into_iter().map(|(group, sum)| TallyRow {
        day: day.to_owned(),
        start: start.map(Into::into),
        group: (group.iter())
            .map(|(field, value)| (field.to_owned(), value.map(str::to_owned)))
            .collect(),
        records: sum.records,
        total: sum.total,
        sums: sum.sums,
        counts: sum.counts,
    });
    rows.collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::consolidate::{Options, consolidate};
    use crate::record::Record;
    use crate::staging::{Durability, Staging};

    #[test]
    fn consolidation_during_a_tally_makes_it_start_again() {
        let dir = tempfile::tempdir().unwrap();
        let (data, span) = (DataDir::new(dir.path()), HourSpan::default());
        let grouping = Grouping::default();
        let staging = Staging::open(&data.staging).unwrap();
        for _ in 0..2 {
            let record = Record::parse(r#"{"tokens":1}"#).unwrap();
            staging.stage(&record, Durability::Power).unwrap();
            staging.seal().unwrap();
            let fold = || {
                consolidate(dir.path(), &Options::default()).unwrap();
            };
            let disturbed = try_tally(&data, &grouping, &span, fold).unwrap();
            assert!(disturbed.is_none(), "{disturbed:?}");
        }
        let undisturbed = try_tally(&data, &grouping, &span, || {}).unwrap().unwrap();
        assert_eq!(undisturbed.rows[0].records, 2);
    }
}
