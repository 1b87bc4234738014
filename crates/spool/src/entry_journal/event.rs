//! An entry that was consolidated, as the journal has it, and what such entries add up to.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::entry::EntryName;
use crate::entry_reader::MAX_RECORDS;
use crate::fingerprint::RecordFingerprint;
use crate::time::{DAY, Moment};
use crate::totals;

/// An entry that was consolidated.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct ConsolidatedEntry {
    /// The set it was consolidated with.
    pub(crate) snapshot: Uuid,
    pub(crate) entry: String,
    /// How many it has; they are numbered from 1.
    pub(crate) lines: u64,
    /// Those that are records which had been taken before.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) repeated: Vec<u64>,
    /// Those that no good record came of, in ranges: the first and the last of each.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) aside: Vec<[u64; 2]>,
    /// How many records went into batches.
    pub(crate) records: u64,
    /// Their ids and checksums.
    pub(crate) ids: Vec<RecordFingerprint>,
    /// Those among them whose ids are not known: they had left with a batch when the entry was found
    /// to be damaged or gone.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) unknown: Vec<[u64; 2]>,
    /// Lines that are in no batch, since the entry was damaged or gone.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) lost: Vec<[u64; 2]>,
    /// Lines for another set, since the entry could not be read.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) later: Vec<[u64; 2]>,
    /// Sums of the entries that were noted in the reserve while the disk was full. Their lines are not
    /// known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) sums: Option<EntrySums>,
    /// The last set of these entries. Which lines the journal lacks of it and of older ones is not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) last_set: Option<Uuid>,
}

/// Sums of the events of a journal.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct EntrySums {
    pub(crate) entries: u64,
    /// That went into batches.
    pub(crate) records: u64,
    pub(crate) repeated: u64,
    pub(crate) aside: u64,
    /// Records by the day of the totals in which they count. Those that were consolidated before
    /// there was this field are not in it.
    #[serde(default, skip_serializing_if = "RecordsPerDay::is_empty")]
    pub(crate) days: RecordsPerDay,
}

/// Records by day, such as `2026-11-16`.
pub(crate) type RecordsPerDay = BTreeMap<String, u64>;

impl ConsolidatedEntry {
    /// Reads a line of the journal. Its checksum may match and its numbers may be made up all the same:
    /// those of lines are bounded, so that no sum of them overflows.
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        let taken: Self = serde_json::from_str(text).map_err(|error| error.to_string())?;
        let is_line = |number: u64| (1..=MAX_RECORDS).contains(&number);
        let is_range = |[from, to]: &[u64; 2]| is_line(*from) && is_line(*to) && from <= to;
        let ranges = [&taken.aside, &taken.unknown, &taken.lost, &taken.later];
        let is_sound = taken.lines <= MAX_RECORDS
            && taken.records <= MAX_RECORDS
            && ranges.into_iter().flatten().all(is_range)
            && taken.repeated.iter().all(|number| is_line(*number));
        if is_sound {
            Ok(taken)
        } else {
            Err("it has numbers of lines that cannot be".to_owned())
        }
    }

    /// How many lines no good record came of.
    pub(crate) fn lines_aside(&self) -> u64 {
        count(&self.aside)
    }

    /// How many records left in batches before their ids were known.
    pub(crate) fn records_unknown(&self) -> u64 {
        count(&self.unknown)
    }

    /// How many lines are accounted for.
    pub(crate) fn lines_in_all(&self) -> u64 {
        let others = [&self.aside, &self.lost, &self.later].map(|ranges| count(ranges));
        let sum = others.into_iter().fold(self.records, u64::saturating_add);
        sum.saturating_add(self.repeated.len() as u64)
    }

    /// True if a line is neither damaged nor a record that was taken before.
    pub(crate) fn must_be_in_batch(&self, line: u64) -> bool {
        let has = |ranges: &[[u64; 2]]| {
            let mut ranges = ranges.iter();
            ranges.any(|[from, to]| (*from..=*to).contains(&line))
        };
        !has(&self.aside) && !has(&self.later) && !self.repeated.contains(&line)
    }

    /// The numbers of the lines that were set aside.
    pub(crate) fn all_aside(&self) -> Vec<u64> {
        let ranges = self.aside.iter();
        ranges.flat_map(|[from, to]| *from..=*to).collect()
    }

    /// A line is in a batch, although the entry does not have its record any more.
    pub(crate) fn is_not_aside(&mut self, line: u64) {
        if self
            .aside
            .iter()
            .any(|[from, to]| *from <= line && line <= *to)
        {
            let mut lines = self.all_aside();
            lines.retain(|other| *other != line);
            self.aside.clear();
            for line in lines {
                add_line(&mut self.aside, line);
            }
        }
    }

    /// A record left with a batch, and nothing else is known of it.
    pub(crate) fn add_unknown(&mut self, line: u64) {
        self.records += 1;
        add_line(&mut self.unknown, line);
    }

    /// A line is in no batch: it is for a later set, or lost.
    pub(crate) fn add_nowhere(&mut self, line: u64, is_later: bool) {
        let ranges = if is_later {
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
            last_set: None,
        }
    }
}

/// How many lines there are in these ranges.
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
    pub(crate) fn add(&mut self, taken: &ConsolidatedEntry) {
        if let Some(sums) = &taken.sums {
            return self.add_all(sums);
        }
        let add = |sum: &mut u64, more: u64| *sum = sum.saturating_add(more);
        add(&mut self.entries, 1);
        add(&mut self.records, taken.records);
        add(&mut self.repeated, taken.repeated.len() as u64);
        add(&mut self.aside, taken.lines_aside());
        let at = Moment::from_id(taken.snapshot);
        let mut days = BTreeMap::<Moment, u64>::new();
        for stamp in &taken.ids {
            *days
                .entry(totals::hour_of(stamp.id, at).floor(DAY))
                .or_default() += 1;
        }
        // The totals lack them: the report and `verify` say so.
        if let Some(name) = EntryName::parse(taken.entry.as_ref())
            && !taken.unknown.is_empty()
        {
            let day = totals::hour_of(name.id, at).floor(DAY);
            *days.entry(day).or_default() += taken.records_unknown();
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
