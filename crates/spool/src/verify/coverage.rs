//! Which lines of which entries are where.

use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use uuid::Uuid;

use super::Audit;
use crate::batch::Part;
use crate::entry::EntryName;
use crate::manager::BatchEvent;
use crate::time::Moment;

/// What is known of the lines of entries.
#[derive(Default)]
pub(super) struct Coverage {
    entries: HashMap<EntryName, Account>,
    /// Lines that must be in batches, in the order in which they were consolidated.
    order: Vec<(EntryName, u64, u64)>,
    /// Where the lines of an entry begin in that order.
    starts: HashMap<EntryName, usize>,
    /// The same for entries whose name was used again.
    later_starts: Vec<(EntryName, usize)>,
    /// What was taken, in records, ever.
    pub(super) taken: u64,
    pub(super) aside: u64,
    pub(super) spooled: u64,
    pub(super) failed: u64,
    pub(super) staged: u64,
    /// From when on the journal of what was sent has every event. `None`: it has all.
    pub(super) sent_since: Option<Moment>,
    /// Something is damaged, so that sums cannot be right.
    pub(super) is_damaged: bool,
}

/// The lines of one entry, or of several that had the same name.
#[derive(Default)]
struct Account {
    /// Lines that went into batches, and lines that were set aside.
    records: u64,
    aside: u64,
    /// When it was taken first.
    at: Option<Moment>,
    /// Which lines must be in a batch, and which are: the first, the last. A line may have to be in
    /// two, if an entry of the same name was taken twice.
    expected: Vec<(u64, u64)>,
    found: Vec<(u64, u64)>,
    /// It is in a set that is not finished.
    is_unfinished: bool,
}

impl Coverage {
    /// An entry was taken: so many lines, all but these in batches.
    pub(super) fn taken(
        &mut self,
        name: EntryName,
        lines: u64,
        at: Moment,
        without: &mut [(u64, u64)],
    ) {
        let account = self.entries.entry(name).or_default();
        account.at = Some(account.at.map_or(at, |first| first.min(at)));
        let start = self.order.len();
        match self.starts.entry(name) {
            Entry::Occupied(_) => self.later_starts.push((name, start)),
            Entry::Vacant(free) => {
                free.insert(start);
            }
        }
        without.sort_unstable();
        let mut next = 1;
        for (from, to) in without.iter().copied() {
            if from > next {
                account.expected.push((next, from - 1));
                self.order.push((name, next, from - 1));
            }
            next = next.max(to.saturating_add(1));
        }
        if next <= lines {
            account.expected.push((next, lines));
            self.order.push((name, next, lines));
        }
    }

    /// Not every line of this set and of older ones is in the journal: the disk was full.
    pub(super) fn unproven(&mut self, set: Option<Uuid>) {
        let until = set.map(|set| Moment::from_id(set).after(Duration::from_millis(1)));
        self.sent_since = self.sent_since.max(until);
    }

    /// What of an entry's lines went into batches, and what was set aside.
    pub(super) fn count(&mut self, name: EntryName, records: u64, aside: u64) {
        let account = self.entries.entry(name).or_default();
        account.records += records;
        account.aside += aside;
    }

    /// An entry is in a set that is not finished.
    pub(super) fn unfinished(&mut self, name: EntryName) {
        self.entries.entry(name).or_default().is_unfinished = true;
    }

    /// What was noted of an entry whose set is not finished: records, and lines set aside.
    pub(super) fn begun(&self, name: EntryName) -> (u64, u64) {
        self.entries
            .get(&name)
            .map_or((0, 0), |account| (account.records, account.aside))
    }

    /// These lines are in a batch. How many of them are of a set that is not finished?
    pub(super) fn cover(&mut self, parts: &[Part]) -> u64 {
        let mut unfinished = 0;
        for part in parts {
            let name = EntryName::parse(part.name.as_ref());
            if let Some(account) = name.and_then(|name| self.entries.get_mut(&name)) {
                if account.is_unfinished {
                    unfinished += part.to - part.from + 1;
                } else {
                    account.found.push((part.from, part.to));
                }
            }
        }
        unfinished
    }

    /// The same for a batch that left. Of one with many parts only the first and the last are noted.
    pub(super) fn cover_event(&mut self, event: &BatchEvent) -> u64 {
        let (Some(_), [first, last]) = (event.parts, &*event.entries) else {
            return self.cover(&event.entries);
        };
        let Some(name) = EntryName::parse(first.name.as_ref()) else {
            return 0;
        };
        match self.entries.get(&name) {
            None => return 0, // Older than what is kept of the journal.
            Some(account) if account.is_unfinished => return event.records,
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
            // The lines in between are reported as missing.
            None => self.cover(&event.entries),
        }
    }

    /// Returns so many consecutive lines from the first part on, if they end with the last one.
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

    /// Lines that are nowhere, and lines that are in two places.
    fn faults(&self) -> Vec<(EntryName, String)> {
        let mut faults = Vec::new();
        for (name, account) in &self.entries {
            if account.is_unfinished {
                continue;
            }
            // What became of its batches may have been folded into sums since.
            let is_provable = match (self.sent_since, account.at) {
                (None, _) => true,
                (Some(since), Some(at)) => at >= since,
                (Some(_), None) => false,
            };
            for (from, to, surplus) in account.differences() {
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

impl Account {
    /// Ranges of lines that are in more batches than they must be, or (below zero) in fewer.
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

impl Audit<'_> {
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
        books.staged = sums.taken + sums.aside + sums.staged;
        let taken = books.delivered + books.archived + sums.spooled + sums.failed;
        if books.problems.is_empty() && !sums.is_damaged && sums.taken != taken {
            let what = format!(
                "{} records were taken, but {} delivered + {} archived + {} waiting + {} failed are {taken}",
                sums.taken, books.delivered, books.archived, sums.spooled, sums.failed,
            );
            let path = self.data.sent.clone();
            self.problem(&path, None, what);
        }
    }
}
