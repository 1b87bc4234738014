//! Lines of an unfinished set that are in batches already.
//!
//! A crash leaves some batches of a set written, and some of those may have been delivered since. The
//! entries may have changed, too: one was moved away, or a power failure has torn it. If the records that
//! are left were divided into batches from the start, some would be in two batches with different keys.
//! So a line that is in a batch stays there, and new batches are made of the lines in between. If every
//! entry is as it was, these are the same batches as without a crash.
//!
//! Of a batch that is there, the lines and their records are known. Of one that left, the first and the
//! last line are known: between them all lines of the set were in it.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use crate::batch::Batch;
use crate::entry::{EntryKind, EntryName};
use crate::entry_journal::{ConsolidatedEntry, EntryJournal};
use crate::error::Error;
use crate::fingerprint::RecordFingerprint;
use crate::manager::{BatchStore, EarlierBatch};
use crate::snapshot::Snapshot;
use crate::time::Moment;

/// A line: the place of its entry in the set, and its number.
type LinePosition = (usize, u64);

/// Batches of the set that were put before.
#[derive(Debug, Default)]
pub(super) struct ResumedBatches {
    /// Lines in batches that are there, by the place of their entry.
    there: BTreeMap<usize, BTreeMap<u64, BatchedLine>>,
    /// Names of those batches.
    names: Vec<String>,
    /// Batches that left, in the order of their first lines.
    gone: Vec<RemovedBatch>,
    /// Batches that cannot be read, in the same order.
    unreadable: Vec<UnreadableBatch>,
    /// The first of them that no record was compared with.
    next_unreadable: usize,
    entries: Vec<ResumedEntry>,
    /// The batch that was read last.
    last: Option<(usize, Batch)>,
}

/// A line in a batch that is there.
#[derive(Debug)]
pub(super) struct BatchedLine {
    pub(super) stamp: RecordFingerprint,
    /// Which batch, and which of its records.
    batch: usize,
    record: usize,
    /// The entry still has it.
    is_met: bool,
}

#[derive(Debug)]
struct RemovedBatch {
    parts: Vec<(usize, u64, u64)>,
    start: LinePosition,
    /// `None`: as many records as it has.
    end: Option<LinePosition>,
    records: u64,
    /// Those of its lines that the entries still have.
    seen: Vec<LinePosition>,
}

#[derive(Debug)]
struct UnreadableBatch {
    start: LinePosition,
    name: String,
    error: Error,
}

/// State of an entry of the set.
#[derive(Debug, Default)]
struct ResumedEntry {
    name: String,
    /// Its end is missing, or all of it.
    is_cut: bool,
    /// It is not read, and stays where it is.
    is_excluded: bool,
    /// The number of its last line, as far as it can be read.
    highest: u64,
    /// Lines after that which are in batches.
    beyond: BTreeSet<u64>,
}

/// Treatment of a record of the set.
#[derive(Debug)]
pub(super) enum RecordPlacement {
    /// It is in no batch.
    New,
    /// It is in one.
    Put,
    /// It is the first record of a batch that cannot be read: its batch must get this name.
    First(String, Error),
}

impl ResumedBatches {
    /// Finds the batches of a set. `reused` are entries whose names were used before.
    pub(super) fn read(
        spool: &dyn BatchStore,
        set: &Snapshot,
        reused: &HashSet<String>,
    ) -> Result<Self, Error> {
        let places = set.entries.iter().enumerate();
        let places: HashMap<&str, usize> = places.map(|(at, name)| (name.as_str(), at)).collect();
        let entry = |name: &String| ResumedEntry {
            name: name.clone(),
            is_excluded: set.excluded.contains(name),
            ..ResumedEntry::default()
        };
        let mut all = Self {
            entries: set.entries.iter().map(entry).collect(),
            ..Self::default()
        };
        let begun = Moment::from_id(set.id);
        spool.earlier_batches(set.id, &set.entries, &mut |put| match put {
            EarlierBatch::Present(batch) => all.add_there(&batch, &places),
            EarlierBatch::Gone {
                name,
                parts,
                records,
                at,
            } => {
                let is_older = at.is_some_and(|at| Moment::from(at) < begun);
                let is_reused = parts.iter().all(|part| reused.contains(&part.name));
                if !(is_older && is_reused) {
                    let of = |part: &crate::batch::Part| {
                        Some((*places.get(part.name.as_str())?, part.from, part.to))
                    };
                    let parts: Option<Vec<_>> = parts.iter().map(of).collect();
                    let start = first_line(&name, &set.entries);
                    if let (Some(parts), Some(start)) = (parts, start) {
                        all.gone.push(RemovedBatch {
                            start: parts.first().map_or(start, |part| (part.0, part.1)),
                            end: parts.last().map(|part| (part.0, part.2)),
                            parts,
                            records,
                            seen: Vec::new(),
                        });
                    }
                }
            }
            EarlierBatch::Unreadable { name, error } => {
                if let Some(start) = first_line(&name, &set.entries) {
                    all.unreadable.push(UnreadableBatch { start, name, error });
                }
            }
        })?;
        all.gone.sort_by_key(|gone| gone.start);
        // A batch whose halves are there: they say which lines it has.
        let mut unreadable = std::mem::take(&mut all.unreadable);
        unreadable.retain(|batch| !all.has(batch.start));
        unreadable.sort_by_key(|batch| batch.start);
        all.unreadable = unreadable;
        Ok(all)
    }

    fn add_there(&mut self, batch: &Batch, places: &HashMap<&str, usize>) {
        let lines = batch.parts().iter();
        let lines = lines.flat_map(|part| (part.from..=part.to).map(|line| (&*part.name, line)));
        for (record, (name, line)) in lines.enumerate() {
            let of = batch.records().get(record);
            if let (Some(place), Some(of)) = (places.get(name), of) {
                let line_of = BatchedLine {
                    stamp: RecordFingerprint::new(of),
                    batch: self.names.len(),
                    record,
                    is_met: false,
                };
                self.there.entry(*place).or_default().insert(line, line_of);
            }
        }
        self.names.push(batch.file_name());
    }

    /// True if no batch was put.
    pub(super) fn is_empty(&self) -> bool {
        self.there.is_empty() && self.gone.is_empty() && self.unreadable.is_empty()
    }

    fn there_at(&self, (place, line): LinePosition) -> Option<&BatchedLine> {
        self.there.get(&place)?.get(&line)
    }

    fn gone_at(&mut self, position: LinePosition) -> Option<&mut RemovedBatch> {
        let after = self.gone.partition_point(|gone| gone.start <= position);
        let gone = self.gone.get_mut(after.checked_sub(1)?)?;
        gone.has(position).then_some(gone)
    }

    fn has(&mut self, position: LinePosition) -> bool {
        self.there_at(position).is_some() || self.gone_at(position).is_some()
    }

    /// True if every record of an entry, by the journal, is in a batch that is there.
    pub(super) fn has_all(&self, place: usize, taken: &ConsolidatedEntry) -> bool {
        let is_there = |line| self.there_at((place, line)).is_some();
        (1..=taken.lines).all(|line| !taken.must_be_in_batch(line) || is_there(line))
    }

    /// True if all lines of an entry that are in batches have known ids, so that its other lines can
    /// be told from them later.
    pub(super) fn has_ids_of(&self, place: usize) -> bool {
        let is_after = |end: LinePosition| end.0 >= place;
        let mut gone = self.gone.iter();
        self.unreadable.is_empty()
            && !gone.any(|gone| gone.start.0 <= place && gone.end.is_none_or(is_after))
    }

    /// Leaves an entry out. Returns its lines that are in batches.
    pub(super) fn exclude(&mut self, place: usize) -> Vec<u64> {
        if let Some(entry) = self.entries.get_mut(place) {
            entry.is_excluded = true;
        }
        let lines = self.there.get(&place).into_iter();
        lines.flat_map(|lines| lines.keys().copied()).collect()
    }

    /// Compares a record that an entry has with those in batches.
    pub(super) fn meet(
        &mut self,
        place: usize,
        line: u64,
        stamp: RecordFingerprint,
    ) -> Result<RecordPlacement, Error> {
        let position = (place, line);
        let there = self.there.get_mut(&place);
        if let Some(put) = there.and_then(|lines| lines.get_mut(&line))
            && put.stamp.id == stamp.id
        {
            put.is_met = true;
            return Ok(RecordPlacement::Put);
        }
        if let Some(gone) = self.gone_at(position) {
            gone.seen.push(position);
            return Ok(RecordPlacement::Put);
        }
        let Some(batch) = self.unreadable.get(self.next_unreadable) else {
            return Ok(RecordPlacement::New);
        };
        if batch.start > position {
            return Ok(RecordPlacement::New);
        }
        if batch.start < position {
            // Its first record is not there any more: which ones follow is not known.
            return Err(batch.error.clone());
        }
        self.next_unreadable += 1;
        Ok(RecordPlacement::First(
            batch.name.clone(),
            batch.error.clone(),
        ))
    }

    /// Lines of an entry that are in batches and that it does not have any more.
    pub(super) fn unmet(&mut self, place: usize) -> Vec<(u64, BatchedLine)> {
        let lines = self.there.remove(&place).unwrap_or_default();
        lines.into_iter().filter(|(_, put)| !put.is_met).collect()
    }

    /// The record of such a line, from its batch. `None`: the batch left meanwhile.
    pub(super) fn load(
        &mut self,
        spool: &dyn BatchStore,
        put: &BatchedLine,
    ) -> Result<Option<crate::record::Record>, Error> {
        if self
            .last
            .as_ref()
            .is_none_or(|(last, _)| *last != put.batch)
        {
            let name = self.names.get(put.batch).map_or("", String::as_str);
            self.last = spool.find(name)?.map(|batch| (put.batch, batch));
        }
        let batch = self.last.as_ref().map(|(_, batch)| batch);
        Ok(batch.and_then(|batch| batch.records().get(put.record).cloned()))
    }

    /// An entry was read, as far as it is there.
    pub(super) fn entry_read(&mut self, place: usize, lines: u64, is_cut: bool) {
        if let Some(entry) = self.entries.get_mut(place) {
            (entry.highest, entry.is_cut) = (lines, is_cut);
        }
    }

    /// A line is in a batch, and its entry does not have it any more.
    pub(super) fn add_line(&mut self, place: usize, line: u64, taken: &mut ConsolidatedEntry) {
        if let Some(entry) = self.entries.get_mut(place)
            && line > entry.highest
        {
            entry.beyond.insert(line);
        }
        taken.lines = taken.lines.max(line);
        taken.is_not_aside(line);
    }

    /// All entries were read: accounts for lines that left with batches and that the entries do not
    /// have any more, and for lines that are nowhere.
    pub(super) fn account(&mut self, journal: &mut EntryJournal) {
        for gone in std::mem::take(&mut self.gone) {
            self.account_for(&gone, journal);
        }
        for entry in &self.entries {
            let Some(taken) = journal.waiting(&entry.name) else {
                continue;
            };
            let last = entry.beyond.last().copied().unwrap_or_default();
            for line in entry.highest + 1..last {
                if !entry.beyond.contains(&line) {
                    taken.add_nowhere(line, entry.is_excluded);
                }
            }
            for (lines, what) in [
                (&taken.unknown, "delivered, but in no totals"),
                (&taken.lost, "lost"),
            ] {
                if !lines.is_empty() {
                    let (entry, lines) = (&entry.name, shown(lines));
                    tracing::warn!(entry, lines, "an entry is damaged or gone: records {what}");
                }
            }
        }
    }

    /// Finds the lines of a batch that left which the entries do not have any more.
    fn account_for(&mut self, gone: &RemovedBatch, journal: &mut EntryJournal) {
        let mut left = gone.records.saturating_sub(gone.seen.len() as u64);
        let Some(end) = gone.end.filter(|_| left > 0) else {
            return;
        };
        let is_seen = |position: LinePosition| gone.seen.binary_search(&position).is_ok();
        for (place, from, to) in &gone.parts {
            for line in *from..=*to {
                if left > 0 && !is_seen((*place, line)) {
                    left -= 1;
                    self.add_unknown(*place, line, journal);
                }
            }
        }
        for place in gone.start.0 + 1..end.0 {
            let name = self.entries[place].name.clone();
            let aside = journal.waiting(&name).map(|taken| taken.all_aside());
            if let Some(records) = journal.noted(&name).map(|taken| taken.records) {
                let seen = gone.seen.iter().filter(|(of, _)| *of == place).count() as u64;
                left -= left.min(records.saturating_sub(seen));
            } else if EntryName::parse(name.as_ref())
                .is_some_and(|name| name.kind == EntryKind::Single)
            {
                if left > 0 && !is_seen((place, 1)) {
                    left -= 1;
                    self.add_unknown(place, 1, journal);
                }
            } else {
                for line in aside.unwrap_or_default() {
                    if left > 0 {
                        left -= 1;
                        self.add_unknown(place, line, journal);
                    }
                }
            }
        }
        let places = gone.start.0..=end.0;
        let is_cut = |place: &usize| {
            let entry = &self.entries[*place];
            let kind = EntryName::parse(entry.name.as_ref()).map(|name| name.kind);
            entry.is_cut && kind != Some(EntryKind::Single) && journal.noted(&entry.name).is_none()
        };
        if let Some(place) = places.into_iter().find(is_cut) {
            let entry = &self.entries[place];
            let next = entry.beyond.last().copied().unwrap_or(entry.highest) + 1;
            for line in next..next.saturating_add(left) {
                self.add_unknown(place, line, journal);
            }
        }
    }

    fn add_unknown(&mut self, place: usize, line: u64, journal: &mut EntryJournal) {
        let name = self.entries[place].name.clone();
        if journal.noted(&name).is_some() {
            return; // The journal has it.
        }
        let taken = journal.waiting(&name);
        if let Some(taken) = taken.filter(|taken| !taken.repeated.contains(&line)) {
            self.add_line(place, line, taken);
            taken.add_unknown(line);
        }
    }

    /// The error of a batch that cannot be read and whose first record did not come.
    pub(super) fn finish(&self) -> Result<(), Error> {
        match self.unreadable.get(self.next_unreadable) {
            Some(batch) => Err(batch.error.clone()),
            None => Ok(()),
        }
    }
}

impl RemovedBatch {
    fn has(&self, position: LinePosition) -> bool {
        self.start <= position
            && match self.end {
                Some(end) => position <= end,
                None => (self.seen.len() as u64) < self.records,
            }
    }
}

/// The first line of a batch, by its name.
fn first_line(name: &str, entries: &[String]) -> Option<LinePosition> {
    let (id, rest) = (name.get(..36)?, name.get(37..)?);
    let line = rest.split('-').next()?.parse().ok()?;
    let place = entries.iter().position(|entry| entry.starts_with(id))?;
    Some((place, line))
}

/// Numbers of lines, for people.
fn shown(ranges: &[[u64; 2]]) -> String {
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
