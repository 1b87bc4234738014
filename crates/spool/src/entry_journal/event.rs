//! Events of the entry journal, one for each consolidated entry, and sums: the numbers of entries
//! and records in all events.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::entry::EntryName;
use crate::entry_reader::MAX_RECORDS;
use crate::fingerprint::RecordFingerprint;
use crate::time::{DAY, Moment};
use crate::totals;

/// An event of the journal: an entry that was consolidated. Each of its lines is in exactly one of
/// `repeated`, `aside`, `lost`, `later` and the `records` in batches.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct ConsolidatedEntry {
    /// Id of the snapshot that the entry was in. After a crash, it shows which events belong to the
    /// unfinished snapshot.
    pub(crate) snapshot: Uuid,
    pub(crate) entry: String,
    /// Number of lines with records, which are numbered from 1.
    pub(crate) lines: u64,
    /// Numbers of the lines whose record had been consolidated before. Such a record is skipped.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) repeated: Vec<u64>,
    /// Lines without a valid record, in ranges: the first and the last of each.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) aside: Vec<[u64; 2]>,
    /// Number of the entry's records that are in batches, including those in `unknown`.
    pub(crate) records: u64,
    /// Fingerprints of the entry's records that are in batches, except for those in `unknown`.
    pub(crate) ids: Vec<RecordFingerprint>,
    /// Ranges of lines that are in batches, although the ids of their records are not known: the
    /// batch was delivered before a crash, and the entry was damaged or missing afterwards. These
    /// records count in `records` and are not in `ids`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) unknown: Vec<[u64; 2]>,
    /// Ranges of lines whose records were lost: the entry was damaged or missing after a crash, and
    /// no batch has the records.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) lost: Vec<[u64; 2]>,
    /// Ranges of lines that a later snapshot consolidates, because the entry could not be read.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) later: Vec<[u64; 2]>,
    /// Numbers that this event adds to the sums of the journal. `None` in the event of a single
    /// entry, whose own fields are counted. Events that were flushed from the reserve (space
    /// preallocated for a full disk) have it: the last of them counts all entries that were
    /// consolidated while the disk was full, the others count none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) sums: Option<EntrySums>,
    /// Id of the last snapshot that was consolidated while the disk was full. The journal may lack
    /// lines of this snapshot and of older ones.
    #[serde(rename = "last_set", default, skip_serializing_if = "Option::is_none")]
    pub(crate) last_snapshot: Option<Uuid>,
}

/// Numbers of consolidated entries and of their records, summed over events of the entry journal.
/// The first line of a journal file has the sums of all older files, so that these can be removed.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct EntrySums {
    /// Consolidated entries.
    pub(crate) entries: u64,
    /// Records that were written to batches.
    pub(crate) records: u64,
    /// Records that were skipped, because they had been consolidated before.
    pub(crate) repeated: u64,
    /// Number of lines without a valid record.
    pub(crate) aside: u64,
    /// Number of records by the day whose totals include them. Records that earlier versions
    /// consolidated are missing here, because those versions did not write this field.
    #[serde(default, skip_serializing_if = "RecordsPerDay::is_empty")]
    pub(crate) days: RecordsPerDay,
}

/// Number of records by day, such as `2026-11-16`.
pub(crate) type RecordsPerDay = BTreeMap<String, u64>;

impl ConsolidatedEntry {
    /// Parses a line of the journal. Rejects line numbers above the maximum, so that sums of them
    /// do not overflow, and overlapping ranges that would add up to more lines than an entry has.
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        let consolidated: Self = serde_json::from_str(text).map_err(|error| error.to_string())?;
        let is_line = |number: u64| (1..=MAX_RECORDS).contains(&number);
        let is_range = |[from, to]: &[u64; 2]| is_line(*from) && is_line(*to) && from <= to;
        let ranges = [
            &consolidated.aside,
            &consolidated.unknown,
            &consolidated.lost,
            &consolidated.later,
        ];
        let is_sound = consolidated.lines <= MAX_RECORDS
            && consolidated.records <= MAX_RECORDS
            && ranges.into_iter().flatten().all(is_range)
            && ranges
                .into_iter()
                .all(|ranges| count(ranges) <= MAX_RECORDS)
            && consolidated.repeated.iter().all(|number| is_line(*number));
        if is_sound {
            Ok(consolidated)
        } else {
            Err("its line numbers are out of range".to_owned())
        }
    }

    /// Returns the number of lines without a valid record.
    pub(crate) fn lines_aside(&self) -> u64 {
        count(&self.aside)
    }

    /// Returns the number of records that are in batches, but whose ids are not known (`unknown`).
    /// `records` minus this number must equal the number of `ids`.
    pub(crate) fn records_unknown(&self) -> u64 {
        count(&self.unknown)
    }

    /// Returns the number of lines that the event accounts for: in batches, repeated, without a
    /// valid record, lost, or left for a later snapshot. The number equals `lines` unless the event
    /// is damaged.
    pub(crate) fn accounted_lines(&self) -> u64 {
        let others = [&self.aside, &self.lost, &self.later].map(|ranges| count(ranges));
        let sum = others.into_iter().fold(self.records, u64::saturating_add);
        sum.saturating_add(self.repeated.len() as u64)
    }

    /// True if a batch must contain this line: the line has a valid record that was not
    /// consolidated before.
    pub(crate) fn must_be_in_batch(&self, line: u64) -> bool {
        let has = |ranges: &[[u64; 2]]| {
            let mut ranges = ranges.iter();
            ranges.any(|[from, to]| (*from..=*to).contains(&line))
        };
        !has(&self.aside) && !has(&self.later) && !self.repeated.contains(&line)
    }

    /// Returns the numbers of the lines without a valid record.
    pub(crate) fn aside_lines(&self) -> Vec<u64> {
        let ranges = self.aside.iter();
        ranges.flat_map(|[from, to]| *from..=*to).collect()
    }

    /// Removes a line from `aside`, the lines without a valid record: a batch has the line's
    /// record, although the entry has lost it since. Otherwise the line would count both as damaged
    /// and as batched.
    pub(crate) fn remove_from_aside(&mut self, line: u64) {
        if self
            .aside
            .iter()
            .any(|[from, to]| *from <= line && line <= *to)
        {
            let mut lines = self.aside_lines();
            lines.retain(|other| *other != line);
            self.aside.clear();
            for line in lines {
                add_line(&mut self.aside, line);
            }
        }
    }

    /// Adds a line to `unknown`, and its record to the number of records: the record was delivered
    /// in a batch, but its id is not known.
    pub(crate) fn add_unknown(&mut self, line: u64) {
        self.records += 1;
        add_line(&mut self.unknown, line);
    }

    /// Adds a line that is in no batch: to `later` if a later snapshot will read the line
    /// (`is_for_later`), otherwise to `lost`.
    pub(crate) fn add_unbatched(&mut self, line: u64, is_for_later: bool) {
        let ranges = if is_for_later {
            &mut self.later
        } else {
            &mut self.lost
        };
        add_line(ranges, line);
    }

    pub(crate) fn new(snapshot: Uuid, entry: &str) -> Self {
        Self {
            snapshot,
            entry: entry.to_owned(),
            lines: 0,
            repeated: Vec::new(),
            aside: Vec::new(),
            records: 0,
            ids: Vec::new(),
            unknown: Vec::new(),
            lost: Vec::new(),
            later: Vec::new(),
            sums: None,
            last_snapshot: None,
        }
    }
}

/// Returns the number of lines in ranges of a first and a last line.
fn count(ranges: &[[u64; 2]]) -> u64 {
    let lines = ranges.iter();
    let lines = lines.map(|[from, to]| to.saturating_sub(*from).saturating_add(1));
    lines.fold(0, u64::saturating_add)
}

fn add_line(ranges: &mut Vec<[u64; 2]>, line: u64) {
    match ranges.last_mut() {
        Some([_, to]) if *to + 1 == line => *to = line,
        _ => ranges.push([line, line]),
    }
}

impl EntrySums {
    pub(crate) fn add(&mut self, consolidated: &ConsolidatedEntry) {
        if let Some(sums) = &consolidated.sums {
            return self.add_all(sums);
        }
        let add = |sum: &mut u64, more: u64| *sum = sum.saturating_add(more);
        add(&mut self.entries, 1);
        add(&mut self.records, consolidated.records);
        add(&mut self.repeated, consolidated.repeated.len() as u64);
        add(&mut self.aside, consolidated.lines_aside());
        let at = Moment::from_id(consolidated.snapshot);
        let mut days = BTreeMap::<Moment, u64>::new();
        for fingerprint in &consolidated.ids {
            *days
                .entry(totals::hour_of(fingerprint.id, at).floor(DAY))
                .or_default() += 1;
        }
        // Records with unknown ids count as expected in the totals, although the totals lack them.
        // So the report and `verify` show that the totals of this day are incomplete.
        if let Some(name) = EntryName::parse(consolidated.entry.as_ref())
            && !consolidated.unknown.is_empty()
        {
            let day = totals::hour_of(name.id, at).floor(DAY);
            *days.entry(day).or_default() += consolidated.records_unknown();
        }
        for (day, records) in days {
            let sum = self.days.entry(day.day()).or_default();
            *sum = sum.saturating_add(records);
        }
    }

    pub(crate) fn add_all(&mut self, sums: &Self) {
        for (ours, more) in [
            (&mut self.entries, sums.entries),
            (&mut self.records, sums.records),
            (&mut self.repeated, sums.repeated),
            (&mut self.aside, sums.aside),
        ] {
            *ours = ours.saturating_add(more);
        }
        for (day, records) in &sums.days {
            let sum = self.days.entry(day.clone()).or_default();
            *sum = sum.saturating_add(*records);
        }
    }
}
