//! Accounting for lines that the entries have lost since the crash.

use super::{EarlierBatches, GoneBatch, ResumedEntry};
use crate::entry::{EntryKind, EntryName};
use crate::entry_journal::EntryJournal;

impl EarlierBatches {
    /// Accounts for lines that the entries do not have any more: lines of batches that are gone,
    /// and lines in no batch. All entries must have been read.
    pub(in crate::consolidate) fn account_for_missing_lines(&mut self, journal: &mut EntryJournal) {
        for gone in std::mem::take(&mut self.gone) {
            self.account_for_gone(&gone, journal);
        }
        for entry in &self.entries {
            let Some(consolidated) = journal.pending(&entry.name) else {
                continue;
            };
            let last = entry.beyond.last().copied().unwrap_or_default();
            for line in entry.highest + 1..last {
                if !entry.beyond.contains(&line) {
                    consolidated.add_unbatched(line, entry.is_excluded);
                }
            }
            for (lines, what) in [
                (&consolidated.unknown, "delivered, but not in the totals"),
                (&consolidated.lost, "lost"),
            ] {
                if !lines.is_empty() {
                    let (entry, lines) = (&entry.name, format_ranges(lines));
                    tracing::warn!(entry, lines, "entry is damaged or missing: records {what}");
                }
            }
        }
    }

    /// Accounts for the lines of a gone batch that the entries do not have any more. Only their number
    /// is known. They are assigned to the known parts of the batch, then to the entries between the
    /// first and the last part, then to the end of a truncated entry.
    fn account_for_gone(&mut self, gone: &GoneBatch, journal: &mut EntryJournal) {
        let mut missing = gone.records.saturating_sub(gone.seen.len() as u64);
        let Some(end) = gone.end.filter(|_| missing > 0) else {
            return;
        };
        for (place, from, to) in &gone.parts {
            self.add_unknown(gone, *place, *from..=*to, &mut missing, journal);
        }
        for place in gone.start.0 + 1..end.0 {
            let name = self.entries[place].name.clone();
            if let Some(journaled) = journal.already_journaled(&name) {
                let seen = gone.seen.iter().filter(|seen| seen.0 == place).count() as u64;
                missing -= missing.min(journaled.records.saturating_sub(seen));
            } else if is_single(&name) {
                self.add_unknown(gone, place, [1], &mut missing, journal);
            } else {
                let aside = journal.pending(&name).map(|entry| entry.aside_lines());
                let aside = aside.unwrap_or_default();
                self.add_unknown(gone, place, aside, &mut missing, journal);
            }
        }
        let is_truncated = |place: &usize| {
            let ResumedEntry {
                name, is_truncated, ..
            } = &self.entries[*place];
            *is_truncated && !is_single(name) && journal.already_journaled(name).is_none()
        };
        if let Some(place) = (gone.start.0..=end.0).find(is_truncated) {
            let entry = &self.entries[place];
            let next = entry.beyond.last().copied().unwrap_or(entry.highest) + 1;
            let lines = next..next.saturating_add(missing);
            self.add_unknown(gone, place, lines, &mut missing, journal);
        }
    }

    /// Adds lines of a gone batch to an entry, unless the entry still has them. Adds no more than
    /// `missing`, and subtracts their number from it.
    fn add_unknown(
        &mut self,
        gone: &GoneBatch,
        place: usize,
        lines: impl IntoIterator<Item = u64>,
        missing: &mut u64,
        journal: &mut EntryJournal,
    ) {
        let name = self.entries[place].name.clone();
        let is_journaled = journal.already_journaled(&name).is_some();
        let mut consolidated = journal.pending(&name).filter(|_| !is_journaled);
        let lines = lines.into_iter();
        for line in lines.filter(|line| gone.seen.binary_search(&(place, *line)).is_err()) {
            if *missing == 0 {
                return;
            }
            *missing -= 1;
            if let Some(consolidated) = &mut consolidated
                && !consolidated.repeated.contains(&line)
            {
                self.add_missing_line(place, line, consolidated);
                consolidated.add_unknown(line);
            }
        }
    }
}

fn is_single(name: &str) -> bool {
    EntryName::parse(name.as_ref()).is_some_and(|name| name.kind == EntryKind::Single)
}

/// Formats ranges of lines for the log.
fn format_ranges(ranges: &[[u64; 2]]) -> String {
    let range = |[from, to]: &[u64; 2]| {
        if from == to {
            from.to_string()
        } else {
            format!("{from} to {to}")
        }
    };
    let ranges: Vec<_> = ranges.iter().map(range).collect();
    ranges.join(", ")
}
