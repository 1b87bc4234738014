//! What the records of a span of time add up to: those that were consolidated, and those that are
//! still staged, each once, whatever goes on meanwhile.
//!
//! Nothing is locked and nothing is changed. An entry is in the totals from the fold of its set on,
//! and is deleted only afterwards. So the totals are read, then what is staged, then it is seen
//! whether the totals are still the same; if not, all is read again. If they are, no fold came in
//! between, and an entry that was still there had been folded before only if the set that was being
//! consolidated names it: then the file of its day says so.

mod folded;
mod span;
mod staged;

use std::collections::BTreeMap;
use std::path::Path;
use std::thread;
use std::time::{Duration, SystemTime};

use crate::data_dir::DataDir;
use crate::entry_journal;
use crate::error::Error;
use crate::snapshot::Snapshot;
use crate::staging_lock::StagingLock;
use crate::totals::sum::{Groups, Sum};
use folded::Folded;
use span::Span;

/// How often all is read again ...
const MOST_LOOKS: u32 = 20;
/// ... before whoever consolidates is kept from it.
const LOOKS_WITHOUT_LOCK: u32 = 10;
const PAUSE: Duration = Duration::from_millis(20);

/// What records add up to.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct Tally {
    /// By day, model, key and backend, in this order.
    pub rows: Vec<TallyRow>,
    /// What was asked for, to the full hour; to the full day where the hours are not known any more.
    pub from: Option<SystemTime>,
    /// The end, likewise. It is not part of the span.
    pub until: Option<SystemTime>,
    /// Totals and staged entries that cannot be read, and why: what they say is missing.
    pub problems: Vec<Error>,
}

/// Those of one day that have the same model, key and backend.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct TallyRow {
    /// In UTC: `2026-11-16`.
    pub day: String,
    /// The record's `model`.
    pub model: Option<String>,
    /// The record's `key`.
    pub key: Option<String>,
    /// The record's `backend`.
    pub backend: Option<String>,
    /// How many there are.
    pub records: u64,
    /// Their tokens in all: what `tokens` says, else `total_tokens`, else prompt and completion.
    pub tokens: u64,
    /// The sum of each field that is called `tokens` or ends in `_tokens`.
    pub sums: BTreeMap<String, u64>,
    /// How often `outcome` and `tokens_from` have each value.
    pub counts: BTreeMap<String, BTreeMap<String, u64>>,
}

/// Adds up the records of a span of time, by the time of their ids. A data directory that is not
/// there has none.
///
/// ```
/// use spool::{Durability, Record, Staging, tally};
///
/// let data = tempfile::tempdir()?;
/// let staging = Staging::open(data.path().join("_staging"))?;
/// for _ in 0..2 {
///     let record = Record::parse(r#"{"model":"llama3","prompt_tokens":7,"completion_tokens":35}"#)?;
///     staging.stage(&record, Durability::Process)?;
/// }
///
/// let tally = tally(data.path(), None, None)?;
/// let tokens: u64 = tally.rows.iter().map(|row| row.tokens).sum();
/// assert_eq!(tokens, 84);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn tally(
    data: &Path,
    from: Option<SystemTime>,
    until: Option<SystemTime>,
) -> Result<Tally, Error> {
    tally_in(&DataDir::new(data), from, until)
}

pub(crate) fn tally_in(
    data: &DataDir,
    from: Option<SystemTime>,
    until: Option<SystemTime>,
) -> Result<Tally, Error> {
    let span = Span::new(from, until);
    let mut lock = None;
    let mut tally = Ok(None);
    for look in 0..MOST_LOOKS {
        if look > 0 {
            thread::sleep(PAUSE);
        }
        if look >= LOOKS_WITHOUT_LOCK && lock.is_none() {
            // Folds follow one another faster than all can be read.
            lock = StagingLock::read_lock(&data.staging).ok().flatten();
        }
        tally = try_tally(data, &span, || {});
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

/// What is being consolidated.
fn current_set(data: &DataDir) -> Result<Option<Snapshot>, Error> {
    match Snapshot::read(&*data.disk, &data.staging) {
        // Its owner puts it out of the way, and takes what is staged for a new set.
        Err(error) if error.is_damage() => Ok(None),
        set => set,
    }
}

/// `None`: something was folded meanwhile. `meanwhile` is where a test does that.
fn try_tally(
    data: &DataDir,
    span: &Span,
    meanwhile: impl FnOnce(),
) -> Result<Option<Tally>, Error> {
    let mut folded = Folded::read(data, span)?;
    meanwhile();
    // In this order: see above.
    let set = current_set(data)?;
    let mut rows = folded.take_rows();
    let mut problems = std::mem::take(&mut folded.problems);
    staged::add(data, span, &folded, set.as_ref(), &mut rows, &mut problems)?;
    let unfinished = set.as_ref().filter(|set| !set.is_written).map(|set| set.id);
    for (day, expected) in entry_journal::days(data, unfinished)? {
        // Of a file that is damaged this is said already.
        let is_said = |gap: &Error| problems.iter().any(|error| error.path() == gap.path());
        if span.has_some_of(&day)
            && let Some(gap) = folded.gap(data, &day, expected)
            && !is_said(&gap)
        {
            problems.push(gap);
        }
    }
    // The ids of a new set are taken before it is folded: its records would look like repetitions.
    let state = |set: &Snapshot| (set.id, set.is_written);
    let is_same_set = current_set(data)?.as_ref().map(state) == set.as_ref().map(state);
    if !is_same_set || !folded.is_current(data, span)? {
        return Ok(None);
    }
    let span = folded.span(span);
    Ok(Some(Tally {
        rows: rows
            .into_iter()
            .flat_map(|(day, groups)| rows_of(&day, groups))
            .collect(),
        from: span.from.map(Into::into),
        until: span.until.map(Into::into),
        problems,
    }))
}

fn rows_of(day: &str, groups: Groups) -> Vec<TallyRow> {
    let row = |(group, sum): (_, Sum)| {
        let group: crate::totals::sum::Group = group;
        TallyRow {
            day: day.to_owned(),
            model: group.model,
            key: group.key,
            backend: group.backend,
            records: sum.records,
            tokens: sum.total,
            sums: sum.sums,
            counts: sum.counts,
        }
    };
    groups.into_iter().map(row).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::consolidate::{Options, consolidate};
    use crate::record::Record;
    use crate::staging::{Durability, Staging};

    #[test]
    fn what_is_folded_while_it_is_read_makes_it_read_again() {
        let dir = tempfile::tempdir().unwrap();
        let (data, span) = (DataDir::new(dir.path()), Span::default());
        let staging = Staging::open(&data.staging).unwrap();
        for _ in 0..2 {
            let record = Record::parse(r#"{"tokens":1}"#).unwrap();
            staging.stage(&record, Durability::Power).unwrap();
            staging.seal().unwrap();
            let fold = || {
                consolidate(dir.path(), &Options::default()).unwrap();
            };
            let disturbed = try_tally(&data, &span, fold).unwrap();
            assert!(disturbed.is_none(), "{disturbed:?}");
        }
        let quiet = try_tally(&data, &span, || {}).unwrap().unwrap();
        assert_eq!(quiet.rows[0].records, 2);
    }
}
