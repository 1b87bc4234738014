//! Staged entries, and the journal of consolidated ones.

use std::collections::HashSet;
use std::path::Path;
use std::sync::Arc;

use uuid::Uuid;

use super::{Verification, named};
use crate::entry::{EntryKind, EntryName};
use crate::entry_journal::{ConsolidatedEntry, EntrySums, HeldIds};
use crate::entry_reader::{EntryReader, SingleRecordFile};
use crate::error::Error;
use crate::journal::{JournalKind, JournalLine};
use crate::line::{self, Line};
use crate::reserve::Reserve;
use crate::snapshot::Snapshot;
use crate::time::Moment;

impl Verification<'_> {
    pub(super) fn read_entry_journal(&mut self) -> Result<(), Error> {
        let mut sums = EntrySums::default();
        let held = HeldIds::read(&*self.data.disk, &Reserve::new(&self.data.staging))?;
        let mut is_flushed = held.is_empty();
        let mut seen = HashSet::new();
        let mut problems = Vec::new();
        let mut snapshot = Vec::new();
        JournalKind::Entries.read(self.data, &mut |position, read| {
            let fault = match read {
                JournalLine::Head(before) => return sums = before,
                JournalLine::Event(text) => match ConsolidatedEntry::parse(text) {
                    Ok(mut entry) => {
                        // After a crash, consolidation writes the snapshot's lines to the journal
                        // again. Only the first journal line of each entry of a snapshot counts.
                        let is_first = seen.insert((entry.snapshot, entry.entry.clone()));
                        if is_first {
                            sums.add(&entry);
                        }
                        is_flushed |= held.is_last_event(&entry);
                        self.coverage.unproven(entry.last_snapshot);
                        if entry.sums.is_some() {
                            // The journal line has only sums or ids of entries that were
                            // consolidated while the disk was full. The lines of these entries are
                            // unknown, and cannot be searched for in batches.
                            return;
                        }
                        match checked_name(&entry) {
                            Ok(name) if is_first => {
                                let is_other = |(_, last): &(EntryName, ConsolidatedEntry)| {
                                    last.snapshot != entry.snapshot
                                };
                                if snapshot.last().is_some_and(is_other) {
                                    self.add_snapshot(&mut snapshot);
                                }
                                entry.ids = Vec::new();
                                return snapshot.push((name, entry));
                            }
                            Ok(_) => return,
                            Err(why) => why,
                        }
                    }
                    Err(why) => why,
                },
                JournalLine::Damaged(why) => why.to_owned(),
            };
            let line = format!("line {}", position.line);
            problems.push((position.path.to_owned(), line, fault));
        })?;
        self.add_snapshot(&mut snapshot);
        for path in JournalKind::Entries.foreign_files(self.data)? {
            let what = crate::journal::NO_HEAD.to_owned();
            problems.push((path, "line 1".to_owned(), what));
        }
        for (path, record, what) in problems {
            self.coverage.is_damaged = true;
            self.problem(&path, Some(record), what);
        }
        if !is_flushed {
            sums.add_all(&held.sums);
            self.coverage.unproven(held.last_snapshot);
        }
        self.coverage.consolidated = sums.records;
        self.coverage.aside = sums.aside;
        self.books.repeated = sums.repeated;
        Ok(())
    }

    /// Adds the entries of a snapshot in the order in which they were consolidated, which is that
    /// of their names. Their lines in the journal may be in another order: a line that a power
    /// failure lost was written again later.
    fn add_snapshot(&mut self, snapshot: &mut Vec<(EntryName, ConsolidatedEntry)>) {
        snapshot.sort_by_key(|(name, _)| *name);
        for (name, entry) in snapshot.drain(..) {
            let repeated = entry.repeated.iter().map(|number| (*number, *number));
            let aside = entry.aside.iter().map(|[from, to]| (*from, *to));
            let later = entry.later.iter().map(|[from, to]| (*from, *to));
            let mut in_no_batch: Vec<_> = repeated.chain(aside).chain(later).collect();
            let at = Moment::from_id(entry.snapshot);
            self.coverage
                .add_entry(name, entry.lines, at, &mut in_no_batch);
            self.coverage
                .count(name, entry.records, entry.lines_aside());
        }
    }

    /// Checks the entries in the staging directory and counts their records as staged.
    pub(super) fn read_staging(&mut self) -> Result<(), Error> {
        let staging = self.data.staging.clone();
        let snapshot = Snapshot::read(&*self.data.disk, &staging).unwrap_or_else(|error| {
            self.problem(error.path(), None, error.io_error().to_string());
            None
        });
        let is_written = snapshot
            .as_ref()
            .is_some_and(|snapshot| snapshot.is_written);
        let entries: HashSet<String> = match snapshot {
            Some(snapshot) if is_written => snapshot.consumed().cloned().collect(),
            Some(snapshot) => snapshot.entries.into_iter().collect(),
            None => HashSet::new(),
        };
        let (mut unfinished_records, mut unfinished_aside) = (0, 0);
        for file in self.files(&staging)? {
            let Some(name) = EntryName::parse(file.as_ref()) else {
                continue;
            };
            let is_in_snapshot = entries.contains(&file);
            if is_in_snapshot && is_written {
                // Skip the entry: its records are in batches and do not count as staged, and only
                // its file is left to delete.
                continue;
            }
            let path = name.path_in(&staging);
            let records = match name.kind {
                EntryKind::Single => self.check_single(&path, name.id),
                EntryKind::Sealed | EntryKind::Open => self.check_lines(&path, name.kind),
            };
            self.coverage.staged += records;
            if is_in_snapshot {
                let (records, aside) = self.coverage.counted(name);
                unfinished_records += records;
                unfinished_aside += aside;
                self.coverage.mark_unfinished(name);
            }
        }
        // Subtract from the journal's sums what the journal already has of the unfinished snapshot.
        // These records were counted as staged above and must not be counted twice.
        let coverage = &mut self.coverage;
        coverage.consolidated = coverage.consolidated.saturating_sub(unfinished_records);
        coverage.aside = coverage.aside.saturating_sub(unfinished_aside);
        Ok(())
    }

    /// Checks a file with one record, and returns the number of its records. Other programs write
    /// such files, so an invalid one is not a problem: consolidation moves it to `failed/`.
    fn check_single(&mut self, path: &Path, id: Uuid) -> u64 {
        match SingleRecordFile::read(&*self.data.disk, path, id) {
            Ok(Some(SingleRecordFile::Record(record))) => {
                self.checked(record.json().len() as u64);
                return 1;
            }
            Ok(Some(_)) => {
                let path = path.display();
                tracing::info!(%path, "the file is not a record: consolidation will move it to failed/");
            }
            // The entry was consolidated since it was listed, so that it has no staged records.
            Ok(None) => {}
            Err(error) => self.unreadable(&error),
        }
        0
    }

    /// Checks the lines of an entry, and returns the number of its records.
    fn check_lines(&mut self, path: &Path, kind: EntryKind) -> u64 {
        let disk = Arc::clone(&self.data.disk);
        let mut lines = match EntryReader::open(&*disk, path) {
            Ok(Some(lines)) => lines,
            // The entry was consolidated since it was listed, so that it has no staged records.
            Ok(None) => return 0,
            Err(error) => {
                self.unreadable(&error);
                return 0;
            }
        };
        let (mut records, mut last, mut sealed, mut length) = (0, 0, None, 0);
        let mut faults = Vec::new();
        loop {
            let line = match lines.next() {
                Ok(Some(line)) => line,
                Ok(None) => break,
                Err(error) => {
                    self.unreadable(&error);
                    return records;
                }
            };
            length = line.end;
            let mut fault =
                |what: String| faults.push((named("line", line.place, line.text), what));
            match line.content {
                Ok(Line::Record { number, .. }) => {
                    if number != last + 1 {
                        fault(format!(
                            "record number {number} follows record number {last}: the records \
                             between them are missing or damaged"
                        ));
                    }
                    last = number;
                    records += 1;
                }
                Ok(Line::Sealed { records }) => sealed = Some(records),
                Ok(Line::Entry { .. }) => {}
                Err(_) if has_damaged_end(line.text) => {
                    fault("the newline at its end is damaged".to_owned());
                }
                // A torn line at the end of an open entry is no fault: its writer is still writing
                // the line, or has died.
                Err(_) if kind == EntryKind::Open && !line.is_ended() => {}
                Err(why) => fault(why.to_owned()),
            }
        }
        self.checked(length);
        for (record, what) in faults {
            self.problem(path, Some(record), what);
        }
        if kind == EntryKind::Sealed && sealed != Some(last) {
            let what = match sealed {
                Some(sealed) => {
                    format!(
                        "its seal counts {sealed} records, but the last record has number {last}"
                    )
                }
                None => {
                    "its name is that of a sealed entry, but its seal (the last line) is missing \
                     or damaged"
                        .to_owned()
                }
            };
            self.problem(path, None, what);
        }
        records
    }

    /// Reports an entry that cannot be read. Its records do not count as staged.
    fn unreadable(&mut self, error: &Error) {
        self.problem(
            error.path(),
            None,
            format!("the file cannot be read: {}", error.io_error()),
        );
    }
}

/// Checks the numbers in a line of the entry journal, and returns the name of the entry that the
/// line describes.
fn checked_name(entry: &ConsolidatedEntry) -> Result<EntryName, String> {
    let name = EntryName::parse(entry.entry.as_ref())
        .ok_or("this line of the entry journal contains no valid entry name")?;
    let known = entry.records.saturating_sub(entry.records_unknown());
    if !entry.ids.is_empty() && entry.ids.len() as u64 != known {
        return Err("the number of ids in this line of the entry journal differs from its number of records".to_owned());
    }
    if entry.accounted_lines() != entry.lines {
        return Err("the line counts in this line of the entry journal do not add up to the lines of its entry".to_owned());
    }
    Ok(name)
}

/// True if a line is valid up to a byte that should be its newline. The reader then takes the
/// following line for a part of this one.
fn has_damaged_end(text: &[u8]) -> bool {
    let mark = b"\"}";
    let ends = text.windows(mark.len()).enumerate();
    let mut ends = ends
        .filter(|(_, part)| *part == mark)
        .map(|(at, _)| at + mark.len());
    ends.any(|end| end < text.len() && text[end] != b'\n' && line::read(&text[..end]).is_ok())
}
