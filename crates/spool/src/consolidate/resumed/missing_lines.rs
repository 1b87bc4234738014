//! Journal events of entries that have lost lines since a crash: the lost lines are added, so that
//! the line counts of every entry still add up.

use super::{EarlierBatches, GoneBatch, ResumedEntry};
use crate::entry::{EntryKind, EntryName};
use crate::entry_journal::EntryJournal;

impl EarlierBatches {
    /// Adds lines that entries have lost since a crash to the entries' pending journal events. A
    /// line of a batch that left the data directory, such as a delivered one, becomes `unknown`. A
    /// line in no batch becomes `lost`, or `later` if its entry is excluded. Without these lines,
    /// the counts of an entry would not add up in `verify`. All entries must have been read.
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
                (
                    &consolidated.unknown,
                    "records of a damaged or missing entry were delivered, but the totals lack them",
                ),
                (
                    &consolidated.lost,
                    "records of a damaged or missing entry are lost",
                ),
            ] {
                if !lines.is_empty() {
                    let (entry, lines) = (&entry.name, format_ranges(lines));
                    tracing::warn!(entry, lines, "{what}");
                }
            }
        }
    }

    /// Assigns the lost lines of a gone batch to entries. The file of a gone batch has left the
    /// data directory (the batch was delivered, for example), and entries have lost some of its
    /// lines since a crash. Only the number of these lines is known, but each must be in the
    /// journal event of an entry, or delivered records would be missing in the counts. The lines
    /// are assigned to the parts of the batch that the batch journal names, then to the entries
    /// between the first and the last of these parts, then to the end of a truncated entry.
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

    /// Adds lines of a gone batch (its file has left the data directory) to the journal event of
    /// the entry at index `place`, as lines with unknown record ids. Skips lines that the entry
    /// still has. Reduces `missing`, the number of lines still to be assigned, for every line, and
    /// stops at 0.
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

/// Formats ranges of line numbers for the log, such as `1 to 3, 7`.
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
