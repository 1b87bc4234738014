//! Coverage: which lines of consolidated entries are in batches.

use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use uuid::Uuid;

use super::Verification;
use crate::batch::Part;
use crate::entry::EntryName;
use crate::manager::BatchEvent;
use crate::time::Moment;

/// Lines of consolidated entries that must be in batches, lines that are in batches, and sums of
/// records. `verify` compares them to find records that are missing or exist twice.
#[derive(Default)]
pub(super) struct Coverage {
    entries: HashMap<EntryName, EntryCoverage>,
    /// Lines that must be in batches, in the order in which they were consolidated: entry, first
    /// line and last line. The lines of a batch are consecutive in this order.
    order: Vec<(EntryName, u64, u64)>,
    /// Index in `order` of the first range of lines of each entry. The search for the lines of a
    /// batch that begins with this entry starts there.
    starts: HashMap<EntryName, usize>,
    /// Indexes in `order` of entries whose name was consolidated before. The search for the lines
    /// of a batch continues there if it finds no match at the index in `starts`.
    later_starts: Vec<(EntryName, usize)>,
    /// Number of records that were ever consolidated.
    pub(super) consolidated: u64,
    /// Number of lines of all entries that were moved to `failed/`.
    pub(super) aside: u64,
    /// Number of records in pending batches.
    pub(super) spooled: u64,
    /// Number of records in failed batches.
    pub(super) failed: u64,
    /// Number of records in staged entries.
    pub(super) staged: u64,
    /// Time from which the journal of batches has every event; `None` if it has all events.
    pub(super) sent_since: Option<Moment>,
    /// True if a batch or a journal is damaged. The damage explains sums that differ, so the
    /// difference is not reported as a further problem.
    pub(super) is_damaged: bool,
}

/// Lines of one entry that must be in batches, and lines that are in batches. If a later entry had
/// the same file name, the lines of all entries with that name.
#[derive(Default)]
struct EntryCoverage {
    /// Number of lines of the entry that went into batches, by the journal of consolidated entries.
    records: u64,
    /// Number of lines of the entry that were moved to `failed/`.
    aside: u64,
    /// Time of the first snapshot that has the entry. If it is before `sent_since`, missing lines
    /// cannot be proven and are not reported.
    at: Option<Moment>,
    /// Ranges of lines, first and last, that must be in a batch. A line may have to be in two
    /// batches if an entry with the same name was consolidated twice.
    expected: Vec<(u64, u64)>,
    /// Ranges of lines, first and last, that were found in a batch. Compared with `expected`.
    found: Vec<(u64, u64)>,
    /// True if the entry is in an unfinished snapshot. Its records then count as staged, even if
    /// they are in batches.
    is_unfinished: bool,
}

impl Coverage {
    /// Adds a consolidated entry. All of its lines must be in batches except for the ranges
    /// `in_no_batch`.
    pub(super) fn add_entry(
        &mut self,
        name: EntryName,
        lines: u64,
        at: Moment,
        in_no_batch: &mut [(u64, u64)],
    ) {
        let entry = self.entries.entry(name).or_default();
        entry.at = Some(entry.at.map_or(at, |first| first.min(at)));
        let start = self.order.len();
        match self.starts.entry(name) {
            Entry::Occupied(_) => self.later_starts.push((name, start)),
            Entry::Vacant(free) => {
                free.insert(start);
            }
        }
        in_no_batch.sort_unstable();
        let mut next = 1;
        for (from, to) in in_no_batch.iter().copied() {
            if from > next {
                entry.expected.push((next, from - 1));
                self.order.push((name, next, from - 1));
            }
            next = next.max(to.saturating_add(1));
        }
        if next <= lines {
            entry.expected.push((next, lines));
            self.order.push((name, next, lines));
        }
    }

    /// Excludes the lines of this snapshot and of older ones from the search for missing lines: the
    /// disk was full, and the journal lacks some of them.
    pub(super) fn unproven(&mut self, snapshot: Option<Uuid>) {
        let until = snapshot.map(|id| Moment::from_id(id).after(Duration::from_millis(1)));
        self.sent_since = self.sent_since.max(until);
    }

    /// Counts the lines of an entry that went into batches, and those that were moved to `failed/`.
    pub(super) fn count(&mut self, name: EntryName, records: u64, aside: u64) {
        let entry = self.entries.entry(name).or_default();
        entry.records += records;
        entry.aside += aside;
    }

    /// Marks an entry of an unfinished snapshot: its records count as staged.
    pub(super) fn mark_unfinished(&mut self, name: EntryName) {
        self.entries.entry(name).or_default().is_unfinished = true;
    }

    /// Returns two numbers of an entry that [`Self::count`] has added up: lines that went into
    /// batches, and lines that were moved to `failed/`.
    pub(super) fn counted(&self, name: EntryName) -> (u64, u64) {
        let entry = self.entries.get(&name);
        entry.map_or((0, 0), |entry| (entry.records, entry.aside))
    }

    /// Marks the lines of entries that a batch contains as found. Returns how many of them belong
    /// to an unfinished snapshot. A part is a range of lines of one entry.
    pub(super) fn cover(&mut self, parts: &[Part]) -> u64 {
        let mut unfinished = 0;
        for part in parts {
            let name = EntryName::parse(part.name.as_ref());
            if let Some(entry) = name.and_then(|name| self.entries.get_mut(&name)) {
                if entry.is_unfinished {
                    unfinished += part.to - part.from + 1;
                } else {
                    entry.found.push((part.from, part.to));
                }
            }
        }
        unfinished
    }

    /// Marks the lines of entries that a batch contains as found, as [`Self::cover`] does, but by
    /// the event of the batch in the journal. A part is a range of lines of one entry. If a batch
    /// has more than two parts, the event names only the first and the last one; the lines in
    /// between follow from the order of consolidation.
    pub(super) fn cover_event(&mut self, event: &BatchEvent) -> u64 {
        let (Some(_), [first, last]) = (event.parts, &*event.entries) else {
            return self.cover(&event.entries);
        };
        let Some(name) = EntryName::parse(first.name.as_ref()) else {
            return 0;
        };
        match self.entries.get(&name) {
            // The entry is older than the journal of entries, whose oldest lines are replaced by
            // sums. The lines of the batch cannot be checked.
            None => return 0,
            Some(entry) if entry.is_unfinished => return event.records,
            Some(_) => {}
        }
        let later = self.later_starts.iter().filter(|(other, _)| *other == name);
        let starts = self.starts.get(&name).into_iter();
        let mut starts = starts.chain(later.map(|(_, start)| start));
        let all = starts.find_map(|start| self.between(*start, name, first, last, event.records));
        match all {
            Some(all) => {
                for (name, from, to) in all {
                    self.entries.entry(name).or_default().found.push((from, to));
                }
                0
            }
            // The two parts that the event names do not match the order of consolidation, so the
            // lines between them are unknown. Only the lines of these two parts count as found; the
            // others are reported as missing.
            None => self.cover(&event.entries),
        }
    }

    /// Returns the lines of a batch of which only the first and the last part (a range of lines of
    /// one entry) and the number of records are known. They are consecutive in `order`, and begin
    /// with the first part. Returns `None` unless they end with the last part, because the parts
    /// then do not match the order.
    fn between(
        &self,
        start: usize,
        name: EntryName,
        first: &Part,
        last: &Part,
        records: u64,
    ) -> Option<Vec<(EntryName, u64, u64)>> {
        let (mut all, mut left, mut from) = (Vec::new(), records, Some(first.from));
        for (entry, begin, end) in self.order.get(start..)? {
            let mut begin = *begin;
            if let Some(line) = from {
                if *entry != name {
                    return None;
                }
                if line < begin || line > *end {
                    continue;
                }
                (begin, from) = (line, None);
            }
            let end = (*end).min(begin.saturating_add(left - 1));
            all.push((*entry, begin, end));
            left -= end - begin + 1;
            if left == 0 {
                let is_last =
                    EntryName::parse(last.name.as_ref()) == Some(*entry) && end == last.to;
                return is_last.then_some(all);
            }
        }
        None
    }

    /// Returns the lines that are in no batch and those that are in two.
    fn faults(&self) -> Vec<(EntryName, String)> {
        let mut faults = Vec::new();
        for (name, entry) in &self.entries {
            if entry.is_unfinished {
                continue;
            }
            // Do not report missing lines of entries older than `sent_since`: the journal of
            // batches may have only the sums of their batches, so the lines may be in one of those.
            let is_provable = match (self.sent_since, entry.at) {
                (None, _) => true,
                (Some(since), Some(at)) => at >= since,
                (Some(_), None) => false,
            };
            for (from, to, surplus) in entry.differences() {
                if surplus > 0 {
                    faults.push((*name, format!("{}: in two batches", lines(from, to))));
                } else if is_provable {
                    faults.push((*name, format!("{}: in no batch", lines(from, to))));
                }
            }
        }
        faults.sort_unstable();
        faults
    }
}

impl EntryCoverage {
    /// Returns the ranges of lines, first and last, that are in more or fewer batches than they
    /// must be, with the number of batches in excess. The number is negative for missing lines.
    fn differences(&self) -> Vec<(u64, u64, i64)> {
        let mut steps = BTreeMap::<u64, i64>::new();
        for (ranges, step) in [(&self.expected, -1), (&self.found, 1)] {
            for (from, to) in ranges {
                *steps.entry(*from).or_default() += step;
                *steps.entry(to.saturating_add(1)).or_default() -= step;
            }
        }
        let (mut differences, mut start, mut level) = (Vec::new(), 0, 0);
        for (line, step) in steps {
            if step == 0 {
                continue;
            }
            if level != 0 {
                differences.push((start, line - 1, level));
            }
            (start, level) = (line, level + step);
        }
        differences
    }
}

fn lines(from: u64, to: u64) -> String {
    if from == to {
        format!("line {from}")
    } else {
        format!("lines {from} to {to}")
    }
}

impl Verification<'_> {
    /// Compares the number of consolidated records with the sum of delivered, archived, pending and
    /// failed ones, and reports a difference. Reports the lines of entries that are in no batch or
    /// in two.
    pub(super) fn balance(&mut self) {
        for (name, fault) in self.coverage.faults() {
            let path = name.path_in(&self.data.staging);
            let (record, what) = fault.split_once(": ").unwrap_or(("", &fault));
            self.problem(&path, Some(record.to_owned()), what);
        }
        let sums = &self.coverage;
        let books = &mut self.books;
        books.pending = sums.staged + sums.spooled;
        books.failed = sums.failed + sums.aside;
        books.staged = sums.consolidated + sums.aside + sums.staged;
        let found = books.delivered + books.archived + sums.spooled + sums.failed;
        if books.problems.is_empty() && !sums.is_damaged && sums.consolidated != found {
            let what = format!(
                "{} records were consolidated, but {} delivered + {} archived + {} pending + {} \
                 failed are {found}",
                sums.consolidated, books.delivered, books.archived, sums.spooled, sums.failed,
            );
            let path = self.data.sent.clone();
            self.problem(&path, None, what);
        }
    }
}
