//! What is staged, and what was taken from there.

use std::collections::HashSet;
use std::path::Path;
use std::sync::Arc;

use uuid::Uuid;

use super::{Audit, named};
use crate::entry::{EntryKind, EntryName};
use crate::entry_journal::{ConsolidatedEntry, EntrySums, HeldIds};
use crate::entry_reader::{EntryReader, SingleRecordFile};
use crate::error::Error;
use crate::journal::{JournalKind, JournalLine};
use crate::line::{self, Line};
use crate::reserve::Reserve;
use crate::snapshot::Snapshot;
use crate::time::Moment;

impl Audit<'_> {
    /// The journal of what was taken.
    pub(super) fn read_taken(&mut self) -> Result<(), Error> {
        let mut sums = EntrySums::default();
        let held = HeldIds::read(&*self.data.disk, &Reserve::new(&self.data.staging))?;
        let mut is_flushed = held.is_empty();
        let mut seen = HashSet::new();
        let mut problems = Vec::new();
        let mut snapshot = Vec::new();
        JournalKind::Entries.read(self.data, &mut |spot, read| {
            let fault = match read {
                JournalLine::Head(before) => return sums = before,
                JournalLine::Event(text) => match ConsolidatedEntry::parse(text) {
                    Ok(mut taken) => {
                        // A crash may have come between writing it and the end of the set.
                        let is_first = seen.insert((taken.snapshot, taken.entry.clone()));
                        if is_first {
                            sums.add(&taken);
                        }
                        is_flushed |= held.is_last_event(&taken);
                        self.coverage.unproven(taken.last_snapshot);
                        if taken.sums.is_some() {
                            return; // It is about many entries, whose lines are not known.
                        }
                        match name_of(&taken) {
                            Ok(name) if is_first => {
                                let is_other = |(_, last): &(EntryName, ConsolidatedEntry)| {
                                    last.snapshot != taken.snapshot
                                };
                                if snapshot.last().is_some_and(is_other) {
                                    self.take(&mut snapshot);
                                }
                                taken.ids = Vec::new();
                                return snapshot.push((name, taken));
                            }
                            Ok(_) => return,
                            Err(why) => why,
                        }
                    }
                    Err(why) => why,
                },
                JournalLine::Damaged(why) => why.to_owned(),
            };
            problems.push((spot.path.to_owned(), format!("line {}", spot.line), fault));
        })?;
        self.take(&mut snapshot);
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
        self.coverage.taken = sums.records;
        self.coverage.aside = sums.aside;
        self.books.repeated = sums.repeated;
        Ok(())
    }

    /// Counts the entries of a snapshot in the order in which they were consolidated, which is that of
    /// their names. In the journal one may come later, if a power failure had lost its line.
    fn take(&mut self, snapshot: &mut Vec<(EntryName, ConsolidatedEntry)>) {
        snapshot.sort_by_key(|(name, _)| *name);
        for (name, taken) in snapshot.drain(..) {
            // Lines that are in no batch, and need not be.
            let repeated = taken.repeated.iter().map(|number| (*number, *number));
            let aside = taken.aside.iter().map(|[from, to]| (*from, *to));
            let later = taken.later.iter().map(|[from, to]| (*from, *to));
            let mut without: Vec<_> = repeated.chain(aside).chain(later).collect();
            let at = Moment::from_id(taken.snapshot);
            self.coverage.taken(name, taken.lines, at, &mut without);
            self.coverage
                .count(name, taken.records, taken.lines_aside());
        }
    }

    /// What is in the staging directory now.
    pub(super) fn read_staging(&mut self) -> Result<(), Error> {
        let staging = self.data.staging.clone();
        let set = Snapshot::read(&*self.data.disk, &staging).unwrap_or_else(|error| {
            self.problem(error.path(), None, error.io_error().to_string());
            None
        });
        let is_written = set.as_ref().is_some_and(|set| set.is_written);
        let set: HashSet<String> = match set {
            Some(set) if set.is_written => set.consumed().cloned().collect(),
            set => set.into_iter().flat_map(|set| set.entries).collect(),
        };
        let mut taken_again = (0, 0);
        for file in self.files(&staging)? {
            let Some(name) = EntryName::parse(file.as_ref()) else {
                continue;
            };
            let is_taken = set.contains(&file);
            if is_taken && is_written {
                continue; // It is in batches; only its deletion is left to do.
            }
            let path = name.path_in(&staging);
            let records = match name.kind {
                EntryKind::Single => self.check_single(&path, name.id),
                EntryKind::Sealed | EntryKind::Open => self.check_lines(&path, name.kind),
            };
            self.coverage.staged += records;
            if is_taken {
                let (lines, aside) = self.coverage.begun(name);
                taken_again.0 += lines;
                taken_again.1 += aside;
                self.coverage.unfinished(name);
            }
        }
        // What is noted of a set that is not finished is noted too early.
        self.coverage.taken -= taken_again.0.min(self.coverage.taken);
        self.coverage.aside -= taken_again.1.min(self.coverage.aside);
        Ok(())
    }

    fn check_single(&mut self, path: &Path, id: Uuid) -> u64 {
        // Any program may have written it: what is wrong with it is found out, and set aside, when
        // it is consolidated.
        match SingleRecordFile::read(&*self.data.disk, path, id) {
            Ok(Some(SingleRecordFile::Record(record))) => {
                self.checked(record.json().len() as u64);
                return 1;
            }
            Ok(Some(_)) => {
                tracing::info!(path = %path.display(), "not a record: it will be set aside");
            }
            // It moved on.
            Ok(None) => {}
            Err(error) => self.unreadable(&error),
        }
        0
    }

    fn check_lines(&mut self, path: &Path, kind: EntryKind) -> u64 {
        let disk = Arc::clone(&self.data.disk);
        let mut lines = match EntryReader::open(&*disk, path) {
            Ok(Some(lines)) => lines,
            // It moved on.
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
                        fault(format!("it has number {number} and follows {last}"));
                    }
                    last = number;
                    records += 1;
                }
                Ok(Line::Sealed { records }) => sealed = Some(records),
                Ok(Line::Entry { .. }) => {}
                // A whole line, but its end is something else.
                Err(_) if is_whole_but_for_its_end(line.text) => {
                    fault("its end is damaged".to_owned());
                }
                // The end of one that is being written, or was when its writer died.
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
                Some(sealed) => format!("its seal speaks of {sealed} records, the last is {last}"),
                None => "it has no seal".to_owned(),
            };
            self.problem(path, None, what);
        }
        records
    }

    /// An entry that cannot be read: its records are not among those that are accounted for.
    fn unreadable(&mut self, error: &Error) {
        self.problem(
            error.path(),
            None,
            format!("it cannot be read: {}", error.io_error()),
        );
    }
}

/// The name of an entry that was taken, if what is said of it adds up.
fn name_of(taken: &ConsolidatedEntry) -> Result<EntryName, String> {
    let name = EntryName::parse(taken.entry.as_ref()).ok_or("it names no entry")?;
    let known = taken.records.saturating_sub(taken.records_unknown());
    if !taken.ids.is_empty() && taken.ids.len() as u64 != known {
        return Err("its ids do not add up".to_owned());
    }
    if taken.accounted_lines() != taken.lines {
        return Err("its lines do not add up".to_owned());
    }
    Ok(name)
}

/// The newline of a line may be damaged like any other byte; what follows it seems to belong to it.
fn is_whole_but_for_its_end(text: &[u8]) -> bool {
    let mark = b"\"}";
    let ends = text.windows(mark.len()).enumerate();
    let mut ends = ends
        .filter(|(_, part)| *part == mark)
        .map(|(at, _)| at + mark.len());
    ends.any(|end| end < text.len() && text[end] != b'\n' && line::read(&text[..end]).is_ok())
}
