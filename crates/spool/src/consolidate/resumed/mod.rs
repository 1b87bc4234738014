//! Batches of an unfinished snapshot that were written before a crash.
//!
//! Some of these batches may have been delivered since. The entries may have changed, too: an entry
//! was moved away, or a power failure has torn it. If the remaining records were divided into
//! batches from the start, some of them would be in two batches with different keys. So a line in
//! an earlier batch stays there, and new batches are made of the lines in between. If every entry
//! is unchanged, these are the same batches as without a crash.
//!
//! Of a present batch, all lines and records are known. Of a batch that is gone, the first and the
//! last line are known: it had all lines of the snapshot between them.

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

/// A line: the index of its entry in the snapshot, and its number.
type LinePosition = (usize, u64);

/// Batches of the snapshot that were written before a crash.
#[derive(Debug, Default)]
pub(super) struct EarlierBatches {
    /// Lines in present batches, by the index of their entry and their number.
    present: BTreeMap<usize, BTreeMap<u64, BatchedLine>>,
    /// File names of the present batches.
    names: Vec<String>,
    /// Batches that are gone, in the order of their first lines.
    gone: Vec<GoneBatch>,
    /// Batches that cannot be read, in the order of their first lines.
    unreadable: Vec<UnreadableBatch>,
    /// Index of the first unreadable batch whose first record was not read yet.
    next_unreadable: usize,
    /// Entries of the snapshot.
    entries: Vec<ResumedEntry>,
    /// The present batch that was loaded last, and its index.
    loaded: Option<(usize, Batch)>,
}

/// A line in a present batch.
#[derive(Debug)]
pub(super) struct BatchedLine {
    pub(super) fingerprint: RecordFingerprint,
    /// Index of the batch in [`EarlierBatches::names`].
    batch: usize,
    /// Index of the record in the batch.
    record: usize,
    /// True if the entry still has the record.
    is_in_entry: bool,
}

/// A batch whose file is gone, such as one that was delivered.
#[derive(Debug)]
struct GoneBatch {
    /// Known parts: index of the entry, first and last line.
    parts: Vec<(usize, u64, u64)>,
    start: LinePosition,
    /// The last line. `None`: only the first line and the number of records are known.
    end: Option<LinePosition>,
    records: u64,
    /// Lines of the batch that the entries still have, in order.
    seen: Vec<LinePosition>,
}

/// A batch that exists but cannot be read. Its name tells its first line.
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
    /// True if the end of the entry or all of it is missing.
    is_truncated: bool,
    /// True if the entry is not read and stays in place.
    is_excluded: bool,
    /// Number of the last line that can be read.
    highest: u64,
    /// Lines behind `highest` that are in batches.
    beyond: BTreeSet<u64>,
}

/// Relation of a record to the earlier batches.
#[derive(Debug)]
pub(super) enum RecordPlacement {
    /// The record is in no batch.
    New,
    /// The record is in a batch.
    InBatch,
    /// The record is the first record of an unreadable batch with this name. The new batch that
    /// begins with the record must get the same name.
    FirstOfUnreadable(String, Error),
}

impl EarlierBatches {
    /// Finds the batches of a snapshot. `reused` are the entries whose names were in other
    /// snapshots, too.
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
                    // If the names of all its entries were reused, a batch from before this
                    // snapshot was made of earlier entries with these names.
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
        // An unreadable batch may have been split, and its lines are in the halves. Such a batch
        // need not be read.
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

    /// True if the snapshot has no earlier batches.
    pub(super) fn is_empty(&self) -> bool {
        self.present.is_empty() && self.gone.is_empty() && self.unreadable.is_empty()
    }

    fn is_present(&self, (place, line): LinePosition) -> bool {
        let lines = self.present.get(&place);
        lines.is_some_and(|lines| lines.contains_key(&line))
    }

    /// Returns the index of the gone batch that had a line.
    fn gone_at(&self, position: LinePosition) -> Option<usize> {
        let after = self.gone.partition_point(|gone| gone.start <= position);
        let index = after.checked_sub(1)?;
        self.gone[index].has(position).then_some(index)
    }

    /// True if every record of an entry, according to the journal, is in a present batch.
    pub(super) fn has_all(&self, place: usize, consolidated: &ConsolidatedEntry) -> bool {
        (1..=consolidated.lines)
            .all(|line| !consolidated.must_be_in_batch(line) || self.is_present((place, line)))
    }

    /// True if the ids of all lines of an entry in batches are known. Only then can a later
    /// snapshot skip these lines.
    pub(super) fn has_ids_of(&self, place: usize) -> bool {
        let is_after = |end: LinePosition| end.0 >= place;
        let mut gone = self.gone.iter();
        self.unreadable.is_empty()
            && !gone.any(|gone| gone.start.0 <= place && gone.end.is_none_or(is_after))
    }

    /// Excludes an entry. Returns its lines that are in batches.
    pub(super) fn exclude(&mut self, place: usize) -> Vec<u64> {
        if let Some(entry) = self.entries.get_mut(place) {
            entry.is_excluded = true;
        }
        let lines = self.present.get(&place).into_iter();
        lines.flat_map(|lines| lines.keys().copied()).collect()
    }

    /// Looks up a record that an entry has, and marks it as seen. Records must come in the order of
    /// their lines. Fails if the record may be in an unreadable batch.
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
            // The entries have lost the first record of the unreadable batch. Any later record may
            // be in that batch, too.
            Some(batch) if batch.start < position => Err(batch.error.clone()),
            Some(batch) if batch.start == position => {
                self.next_unreadable += 1;
                let (name, error) = (batch.name.clone(), batch.error.clone());
                Ok(RecordPlacement::FirstOfUnreadable(name, error))
            }
            _ => Ok(RecordPlacement::New),
        }
    }

    /// Removes and returns the lines of an entry in present batches that the entry does not have
    /// any more.
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

    /// Stores the number of the last line that could be read of an entry.
    pub(super) fn set_entry_read(&mut self, place: usize, line: u64, is_truncated: bool) {
        if let Some(entry) = self.entries.get_mut(place) {
            (entry.highest, entry.is_truncated) = (line, is_truncated);
        }
    }

    /// Adds a line to the event of an entry that has lost this line. The line is in a present
    /// batch.
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

    /// Returns the error of an unreadable batch whose first record was not read.
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
