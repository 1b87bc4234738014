//! Which lines of which entries are where.

use std::collections::HashMap;

use super::Audit;
use crate::batch::Part;
use crate::entry::Name;
use crate::time::Moment;

/// What is known of the lines of entries.
#[derive(Default)]
pub(super) struct Coverage {
    entries: HashMap<Name, Account>,
    /// What was taken, in records, ever.
    pub(super) taken: u64,
    pub(super) aside: u64,
    pub(super) spooled: u64,
    pub(super) failed: u64,
    pub(super) staged: u64,
    /// From when on the book of what was sent has every event. `None`: it has all.
    pub(super) sent_since: Option<Moment>,
    /// Something is damaged, so that sums cannot be right.
    pub(super) is_damaged: bool,
}

/// The lines of one entry.
#[derive(Default)]
pub(super) struct Account {
    pub(super) lines: u64,
    /// Lines that went into batches, and lines that were set aside.
    pub(super) records: u64,
    pub(super) aside: u64,
    /// When it was taken.
    pub(super) at: Moment,
    /// Where lines are: the first, the last.
    pub(super) ranges: Vec<(u64, u64)>,
    /// It is in a set that is not finished.
    pub(super) is_unfinished: bool,
}

impl Coverage {
    /// An entry was taken.
    pub(super) fn taken(&mut self, name: Name, account: Account) {
        self.entries.insert(name, account);
    }

    /// An entry is in a set that is not finished.
    pub(super) fn unfinished(&mut self, name: Name) {
        self.entries.entry(name).or_default().is_unfinished = true;
    }

    /// What was noted of an entry whose set is not finished: records, and lines set aside.
    pub(super) fn begun(&self, name: Name) -> (u64, u64) {
        self.entries
            .get(&name)
            .map_or((0, 0), |account| (account.records, account.aside))
    }

    /// These lines are in a batch. How many of them are of a set that is not finished?
    pub(super) fn cover(&mut self, parts: &[Part]) -> u64 {
        let mut unfinished = 0;
        for part in parts {
            let name = Name::parse(part.name.as_ref());
            if let Some(account) = name.and_then(|name| self.entries.get_mut(&name)) {
                if account.is_unfinished {
                    unfinished += part.to - part.from + 1;
                } else {
                    account.ranges.push((part.from, part.to));
                }
            }
        }
        unfinished
    }

    /// Lines that are nowhere, and lines that are in two places.
    fn faults(&mut self) -> Vec<(Name, String)> {
        let mut faults = Vec::new();
        for (name, account) in &mut self.entries {
            if account.is_unfinished {
                continue;
            }
            account.ranges.sort_unstable();
            // What became of its batches may have been folded into sums since.
            let is_provable = self.sent_since.is_none_or(|since| account.at >= since);
            let mut next = 1;
            for (from, to) in account.ranges.iter().copied() {
                if from < next {
                    let last = to.min(next - 1);
                    faults.push((*name, format!("{}: in two batches", lines(from, last))));
                } else if from > next && is_provable {
                    faults.push((*name, format!("{}: in no batch", lines(next, from - 1))));
                }
                next = next.max(to + 1);
            }
            if next <= account.lines && is_provable {
                faults.push((
                    *name,
                    format!("{}: in no batch", lines(next, account.lines)),
                ));
            }
        }
        faults.sort_unstable();
        faults
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
