//! Batches of an unfinished snapshot that were written before a crash.
//!
//! The earlier batches of an unfinished snapshot may have been delivered since the crash. The
//! entries may have changed, too: an entry was moved away, or a power failure has torn it. If
//! consolidation divided the remaining records into batches from the start, some records would be
//! in two batches with different keys, and the receiver would count them twice. So a line in an
//! earlier batch stays there, and new batches are made of the lines in between. If every entry is
//! unchanged, the new batches are the same as without a crash.
//!
//! Lines in earlier batches must be found, so that they do not go into new batches. A present batch
//! is one whose file still exists: all of its lines can be read. A gone batch is one whose file has
//! left the data directory, such as a delivered one: the batch journal names its first and its last
//! line, and all lines of the snapshot between them were in the batch.

mod missing_lines;

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use crate::batch::{Batch, Part};
use crate::entry_journal::ConsolidatedEntry;
use crate::error::Error;
use crate::fingerprint::RecordFingerprint;
use crate::manager::{EarlierBatch, SpoolManager};
use crate::record::Record;
use crate::snapshot::Snapshot;
use crate::time::Moment;

/// Position of a line: the index of its entry in the snapshot, and the line number.
type LinePosition = (usize, u64);

/// Batches of the snapshot that were written before a crash.
#[derive(Debug, Default)]
pub(super) struct EarlierBatches {
    /// Lines in batches whose files still exist, by the index of the entry in the snapshot and by
    /// line number. These lines do not go into new batches.
    present: BTreeMap<usize, BTreeMap<u64, BatchedLine>>,
    /// File names of the batches that still exist. [`BatchedLine::batch`] is an index into this
    /// list.
    names: Vec<String>,
    /// Batches whose files have left the data directory, such as delivered ones, sorted by their
    /// first lines. Lines of these batches do not go into new batches.
    gone: Vec<GoneBatch>,
    /// Batches whose files exist but cannot be read now, for example after a disk error, sorted by
    /// their first lines, which are known from the file names.
    unreadable: Vec<UnreadableBatch>,
    /// Index in `unreadable` of the first batch whose first line was not found in the entries yet.
    /// Only that line of such a batch is known, from the file name. If no entry has it, the records
    /// of the batch stay unknown, and consolidation fails.
    next_unreadable: usize,
    /// Entries of the snapshot, as they are after the crash.
    entries: Vec<ResumedEntry>,
    /// Batch that was read last from its file, with its index in `names`. Consecutive lines are
    /// mostly in the same batch, so that its file is not read again for each line.
    loaded: Option<(usize, Batch)>,
}

/// A line in a batch whose file still exists.
#[derive(Debug)]
pub(super) struct BatchedLine {
    pub(super) fingerprint: RecordFingerprint,
    /// Index of the batch in [`EarlierBatches::names`].
    batch: usize,
    /// Index of the record in the batch.
    record: usize,
    /// True once the record was found in its entry. If the entry has lost the record since the
    /// crash, journal and totals get the record from the batch.
    is_in_entry: bool,
}

/// A batch whose file has left the data directory, such as one that was delivered.
#[derive(Debug)]
struct GoneBatch {
    /// Parts of the batch that the batch journal names: index of the entry, first line and last
    /// line. Of more than two parts, the journal names only the first and the last.
    parts: Vec<(usize, u64, u64)>,
    start: LinePosition,
    /// Position of the last line of the batch. `None`: the journal names no parts, so that only the
    /// first line and the number of records are known.
    end: Option<LinePosition>,
    records: u64,
    /// Lines of the batch that the entries still have, in order. The other lines of the batch count
    /// as lost by their entries.
    seen: Vec<LinePosition>,
}

/// A batch whose file exists but cannot be read. Its first line is known from the file name.
#[derive(Debug)]
struct UnreadableBatch {
    start: LinePosition,
    name: String,
    error: Error,
}

/// An entry of the snapshot as it is after the crash.
#[derive(Debug, Default)]
struct ResumedEntry {
    name: String,
    /// True if the end of the entry, or the whole entry, is missing. Lost lines of a gone batch may
    /// be assigned to the missing end.
    is_truncated: bool,
    /// True if the entry is excluded from the snapshot, because it cannot be read. Its file stays
    /// for a later snapshot.
    is_excluded: bool,
    /// Number of the last line that could be read, or that the seal counts.
    highest: u64,
    /// Line numbers above `highest` that earlier batches have: the entry lost these lines in the
    /// crash. Lines between them that no batch has are journaled as `lost`, or `later` if the entry
    /// is excluded, so that the line counts of the entry add up in `verify`.
    beyond: BTreeSet<u64>,
}

/// Relation of a record to the earlier batches.
#[derive(Debug)]
pub(super) enum RecordPlacement {
    /// The record is in no earlier batch, so it goes into a new one.
    New,
    /// The record is in an earlier batch, so it must not go into a new one.
    InBatch,
    /// The record is the first record of an unreadable batch with this name. The new batch that
    /// begins with the record must get the same name.
    FirstOfUnreadable(String, Error),
}

impl EarlierBatches {
    /// Finds the batches of an unfinished snapshot that were written before a crash. `reused` has
    /// the names of entries that the journal also has with another snapshot: batches of the earlier
    /// entries with these names must not count as batches of this snapshot.
    pub(super) fn read(
        spool: &SpoolManager,
        snapshot: &Snapshot,
        reused: &HashSet<String>,
    ) -> Result<Self, Error> {
        let places = snapshot.entries.iter().enumerate();
        let places: HashMap<&str, usize> = places.map(|(at, name)| (name.as_str(), at)).collect();
        let entry = |name: &String| ResumedEntry {
            name: name.clone(),
            is_excluded: snapshot.excluded.contains(name),
            ..ResumedEntry::default()
        };
        let mut found = Self {
            entries: snapshot.entries.iter().map(entry).collect(),
            ..Self::default()
        };
        let begun = Moment::from_id(snapshot.id);
        spool.earlier_batches(
            snapshot.id,
            &snapshot.entries,
            &mut |earlier| match earlier {
                EarlierBatch::Present(batch) => found.add_present(&batch, &places),
                EarlierBatch::Gone {
                    name,
                    parts,
                    records,
                    at,
                } => {
                    // Skip a batch that left the data directory before this snapshot began, if all
                    // of its entry names were reused: the batch was made of earlier entries with
                    // the same names. Otherwise new records would count as delivered, and be lost.
                    let is_older = at.is_some_and(|at| Moment::from(at) < begun);
                    let is_reused = parts.iter().all(|part| reused.contains(&part.name));
                    if !(is_older && is_reused) {
                        found.add_gone(&name, &parts, records, &places);
                    }
                }
                EarlierBatch::Unreadable { name, error } => {
                    if let Some(start) = found.first_line(&name) {
                        let batch = UnreadableBatch { start, name, error };
                        found.unreadable.push(batch);
                    }
                }
            },
        )?;
        found.gone.sort_by_key(|gone| gone.start);
        // Ignore an unreadable batch that was split: its first line is in another batch, one of its
        // halves. Otherwise consolidation would fail, although the halves have its lines.
        let mut unreadable = std::mem::take(&mut found.unreadable);
        unreadable
            .retain(|batch| !found.is_present(batch.start) && found.gone_at(batch.start).is_none());
        unreadable.sort_by_key(|batch| batch.start);
        found.unreadable = unreadable;
        Ok(found)
    }

    fn add_present(&mut self, batch: &Batch, places: &HashMap<&str, usize>) {
        let lines = batch.parts().iter();
        let lines = lines.flat_map(|part| (part.from..=part.to).map(|line| (&*part.name, line)));
        for (index, ((name, line), record)) in lines.zip(batch.records()).enumerate() {
            if let Some(place) = places.get(name) {
                let batched = BatchedLine {
                    fingerprint: RecordFingerprint::new(record),
                    batch: self.names.len(),
                    record: index,
                    is_in_entry: false,
                };
                self.present
                    .entry(*place)
                    .or_default()
                    .insert(line, batched);
            }
        }
        self.names.push(batch.file_name());
    }

    fn add_gone(
        &mut self,
        name: &str,
        parts: &[Part],
        records: u64,
        places: &HashMap<&str, usize>,
    ) {
        let place = |part: &Part| Some((*places.get(&*part.name)?, part.from, part.to));
        let parts: Option<Vec<_>> = parts.iter().map(place).collect();
        if let (Some(parts), Some(start)) = (parts, self.first_line(name)) {
            self.gone.push(GoneBatch {
                start: parts.first().map_or(start, |part| (part.0, part.1)),
                end: parts.last().map(|part| (part.0, part.2)),
                parts,
                records,
                seen: Vec::new(),
            });
        }
    }

    /// Parses the first line of a batch from its file name.
    fn first_line(&self, batch: &str) -> Option<LinePosition> {
        let (id, rest) = (batch.get(..36)?, batch.get(37..)?);
        let line = rest.split('-').next()?.parse().ok()?;
        let mut entries = self.entries.iter();
        let place = entries.position(|entry| entry.name.starts_with(id))?;
        Some((place, line))
    }

    pub(super) fn is_empty(&self) -> bool {
        self.present.is_empty() && self.gone.is_empty() && self.unreadable.is_empty()
    }

    fn is_present(&self, (place, line): LinePosition) -> bool {
        let lines = self.present.get(&place);
        lines.is_some_and(|lines| lines.contains_key(&line))
    }

    /// Returns the index in `gone` of the batch that had the line at `position`. The file of such a
    /// batch has left the data directory.
    fn gone_at(&self, position: LinePosition) -> Option<usize> {
        let after = self.gone.partition_point(|gone| gone.start <= position);
        let index = after.checked_sub(1)?;
        self.gone[index].has(position).then_some(index)
    }

    /// True if every record of an entry, according to the journal, is in a batch whose file still
    /// exists. Then the entry need not be read.
    pub(super) fn has_all(&self, place: usize, consolidated: &ConsolidatedEntry) -> bool {
        (1..=consolidated.lines)
            .all(|line| !consolidated.must_be_in_batch(line) || self.is_present((place, line)))
    }

    /// True if all lines of an entry that are in batches are known: every batch can be read, and no
    /// batch that may have had lines of the entry has left the data directory. Only then may the
    /// entry be excluded, since a later snapshot must skip exactly these lines.
    pub(super) fn has_ids_of(&self, place: usize) -> bool {
        let is_after = |end: LinePosition| end.0 >= place;
        let mut gone = self.gone.iter();
        self.unreadable.is_empty()
            && !gone.any(|gone| gone.start.0 <= place && gone.end.is_none_or(is_after))
    }

    /// Marks an entry as excluded from the snapshot, because its file cannot be read. Returns the
    /// numbers of the entry's lines that are in batches: a later snapshot must skip them.
    pub(super) fn exclude(&mut self, place: usize) -> Vec<u64> {
        if let Some(entry) = self.entries.get_mut(place) {
            entry.is_excluded = true;
        }
        let lines = self.present.get(&place).into_iter();
        lines.flat_map(|lines| lines.keys().copied()).collect()
    }

    /// Looks up a record of an entry in the batches from before the crash, and marks the record's
    /// line as one that the entry still has. Records must be passed in the order of their lines: of
    /// an unreadable batch only the first line is known, and a record after that line may be in the
    /// batch. Fails if the record may be in an unreadable batch.
    pub(super) fn locate(
        &mut self,
        place: usize,
        line: u64,
        fingerprint: RecordFingerprint,
    ) -> Result<RecordPlacement, Error> {
        let position = (place, line);
        let lines = self.present.get_mut(&place);
        if let Some(batched) = lines.and_then(|lines| lines.get_mut(&line))
            && batched.fingerprint.id == fingerprint.id
        {
            batched.is_in_entry = true;
            return Ok(RecordPlacement::InBatch);
        }
        if let Some(index) = self.gone_at(position) {
            self.gone[index].seen.push(position);
            return Ok(RecordPlacement::InBatch);
        }
        match self.unreadable.get(self.next_unreadable) {
            // The entries have lost the first record of an unreadable batch, since the current
            // record comes after it. The current record may be in that batch, too: a new batch with
            // the record could deliver it twice.
            Some(batch) if batch.start < position => Err(batch.error.clone()),
            Some(batch) if batch.start == position => {
                self.next_unreadable += 1;
                let (name, error) = (batch.name.clone(), batch.error.clone());
                Ok(RecordPlacement::FirstOfUnreadable(name, error))
            }
            _ => Ok(RecordPlacement::New),
        }
    }

    /// Returns the lines of an entry that the entry has lost since the crash, and that are in
    /// batches whose files still exist. The caller gets their records from the batches. Forgets all
    /// batched lines of the entry, so that each line is returned only once.
    pub(super) fn take_missing_lines(&mut self, place: usize) -> Vec<(u64, BatchedLine)> {
        let lines = self.present.remove(&place).unwrap_or_default();
        let lines = lines.into_iter();
        lines.filter(|(_, line)| !line.is_in_entry).collect()
    }

    /// Loads the record of a line from its batch. Returns `None` if the batch was delivered
    /// meanwhile.
    pub(super) fn load(
        &mut self,
        spool: &SpoolManager,
        line: &BatchedLine,
    ) -> Result<Option<Record>, Error> {
        let is_loaded = (self.loaded.as_ref()).is_some_and(|(index, _)| *index == line.batch);
        if !is_loaded {
            let name = self.names.get(line.batch).map_or("", String::as_str);
            self.loaded = spool.find(name)?.map(|batch| (line.batch, batch));
        }
        let batch = self.loaded.as_ref().map(|(_, batch)| batch);
        Ok(batch.and_then(|batch| batch.records().get(line.record).cloned()))
    }

    /// Stores the number of the last line that could be read of an entry, or that its seal counts.
    /// Later lines that are in batches count as lost by the entry. `is_truncated` is true if the
    /// end of the entry is missing.
    pub(super) fn set_entry_read(&mut self, place: usize, line: u64, is_truncated: bool) {
        if let Some(entry) = self.entries.get_mut(place) {
            (entry.highest, entry.is_truncated) = (line, is_truncated);
        }
    }

    /// Adds a line to the journal event of its entry: the entry has lost the line since the crash,
    /// but a batch has the line. The line must not count as damaged (`aside`) as well.
    pub(super) fn add_missing_line(
        &mut self,
        place: usize,
        line: u64,
        consolidated: &mut ConsolidatedEntry,
    ) {
        if let Some(entry) = self.entries.get_mut(place)
            && line > entry.highest
        {
            entry.beyond.insert(line);
        }
        consolidated.lines = consolidated.lines.max(line);
        consolidated.remove_from_aside(line);
    }

    /// Returns an error if the entries have lost the first record of an unreadable batch. The
    /// records of that batch are then unknown, so the snapshot must not be finished. All entries
    /// must have been read.
    pub(super) fn check_unreadable(&self) -> Result<(), Error> {
        match self.unreadable.get(self.next_unreadable) {
            Some(batch) => Err(batch.error.clone()),
            None => Ok(()),
        }
    }
}

impl GoneBatch {
    fn has(&self, position: LinePosition) -> bool {
        self.start <= position
            && match self.end {
                Some(end) => position <= end,
                None => (self.seen.len() as u64) < self.records,
            }
    }
}
