//! What comes of a set of entries: batches, the journal of what was taken, totals.

use std::collections::HashSet;
use std::io;

use uuid::Uuid;

use super::ConsolidationRun;
use super::excluded::ExcludedEntries;
use super::resumed::{RecordPlacement, ResumedBatches};
use crate::batch::{self, Batch, Part};
use crate::entry_journal::{self, ConsolidatedEntry, EntryJournal, RecordMatch};
use crate::entry_records::EntryRecords;
use crate::error::Error;
use crate::files;
use crate::fingerprint::RecordFingerprint;
use crate::record::Record;
use crate::snapshot::Snapshot;
use crate::time::new_id;
use crate::totals::{self, Check, Totals, sum};

/// A set of entries on its way into batches.
pub(super) struct SnapshotProgress {
    id: Uuid,
    /// How many records go into a batch.
    size: usize,
    /// After a crash: what came of it before.
    pub(super) resumed: Option<ResumedBatches>,
    /// Lines that are in batches of other sets.
    pub(super) left_out: ExcludedEntries,
    /// Entries that are not read.
    pub(super) unread: HashSet<String>,
    /// Place of the entry that is being read.
    place: usize,
    /// Name of the batch that is being filled, if it is there and cannot be read, and why.
    expected: Option<(String, Error)>,
    /// The batch that is being filled.
    parts: Vec<Part>,
    records: Vec<Record>,
    bytes: usize,
    totals: Totals,
}

impl SnapshotProgress {
    pub(super) fn new(set: &Snapshot, left_out: ExcludedEntries) -> Self {
        Self {
            id: set.id,
            left_out,
            size: set.batch_size.max(1),
            resumed: None,
            unread: HashSet::new(),
            place: 0,
            expected: None,
            parts: Vec::new(),
            records: Vec::new(),
            bytes: 0,
            totals: Totals::new(set.id),
        }
    }

    fn meet(&mut self, line: u64, stamp: RecordFingerprint) -> Result<RecordPlacement, Error> {
        match &mut self.resumed {
            Some(resumed) => resumed.meet(self.place, line, stamp),
            None => Ok(RecordPlacement::New),
        }
    }

    /// The entry was read up to this line.
    fn entry_read(&mut self, line: u64, is_cut: bool) {
        if let Some(resumed) = &mut self.resumed {
            resumed.entry_read(self.place, line, is_cut);
        }
    }

    fn has_room_for(&self, record: &Record) -> bool {
        self.records.is_empty() || self.bytes + record.json().len() <= batch::MAX_BYTES
    }

    fn add(&mut self, name: &str, number: u64, record: Record) {
        match self.parts.last_mut() {
            Some(part) if part.name == name && part.to + 1 == number => part.to = number,
            _ => self.parts.push(Part {
                name: name.to_owned(),
                from: number,
                to: number,
            }),
        }
        self.bytes += record.json().len();
        self.records.push(record);
    }

    fn cut(&mut self) -> Option<Batch> {
        let (parts, records) = (
            std::mem::take(&mut self.parts),
            std::mem::take(&mut self.records),
        );
        self.bytes = 0;
        (!records.is_empty()).then(|| Batch::new(parts, records))
    }
}

impl ConsolidationRun<'_> {
    /// Writes all batches of a set of entries, each unless it is there already, and notes the entries.
    pub(super) fn write(
        &mut self,
        snapshot: &mut SnapshotProgress,
        journal: &mut EntryJournal,
        names: &[String],
    ) -> Result<(), Error> {
        for (place, name) in names.iter().enumerate() {
            let opened = if snapshot.unread.contains(name) {
                None
            } else {
                EntryRecords::open(&**self.disk, self.data, name)?
            };
            snapshot.place = place;
            let mut taken = ConsolidatedEntry::new(snapshot.id, name);
            // Missing ones are no error.
            match opened {
                Some(reader) => self.write_entry(snapshot, journal, reader, &mut taken)?,
                None if snapshot.resumed.is_none() => continue,
                None => {
                    snapshot.unread.insert(name.clone());
                    snapshot.entry_read(0, true);
                }
            }
            self.learn_from_batches(snapshot, journal, &mut taken)?;
            journal.add(taken);
        }
        self.write_batch(snapshot, journal)?;
        if let Some(resumed) = &mut snapshot.resumed {
            resumed.finish()?;
            resumed.account(journal);
            let unread = &snapshot.unread;
            journal.forget_waiting(|taken| taken.lines == 0 && unread.contains(&taken.entry));
        }
        self.spool.flush()?;
        journal.write_waiting()
    }

    /// Learns the records that are in batches and that their entry does not have any more.
    fn learn_from_batches(
        &mut self,
        snapshot: &mut SnapshotProgress,
        journal: &mut EntryJournal,
        taken: &mut ConsolidatedEntry,
    ) -> Result<(), Error> {
        let Some(resumed) = &mut snapshot.resumed else {
            return Ok(());
        };
        for (line, put) in resumed.unmet(snapshot.place) {
            let is_of_other_set = snapshot.left_out.has(&taken.entry, snapshot.id, line);
            if is_of_other_set || journal.seen(self.data, put.stamp, taken)? != RecordMatch::Never {
                continue;
            }
            if let Some(record) = resumed.load(self.spool, &put)? {
                if let Ok(fields) = sum::fields(&record) {
                    snapshot.totals.add(record.id(), &fields);
                }
            } else {
                let (entry, why) = (&taken.entry, "its batch left while it was read");
                tracing::warn!(entry, line, why, "a record is in no totals");
            }
            resumed.add_line(snapshot.place, line, taken);
            journal.learn(put.stamp, taken);
            self.done.records += 1;
        }
        Ok(())
    }

    pub(super) fn write_totals(
        &mut self,
        snapshot: &mut SnapshotProgress,
        journal: &mut EntryJournal,
        is_read: bool,
    ) -> Result<(), Error> {
        let (disk, data, id) = (&**self.disk, self.data, snapshot.id);
        let totals = std::mem::take(&mut snapshot.totals);
        let unfolded = totals.fold(disk, data, id)?;
        let check = if is_read {
            Check::Known
        } else {
            Check::Missing
        };
        let unrepaired = totals::repair(disk, data, journal.days(), id, check)?;
        if unfolded.is_some() {
            self.kept.note_totals(unfolded.or(unrepaired));
        }
        journal.sync()
    }

    fn write_entry(
        &mut self,
        snapshot: &mut SnapshotProgress,
        journal: &mut EntryJournal,
        mut reader: EntryRecords<'_>,
        taken: &mut ConsolidatedEntry,
    ) -> Result<(), Error> {
        while let Some((number, record)) = reader.next()? {
            let stamp = RecordFingerprint::new(&record);
            let seen = if snapshot.left_out.has(&taken.entry, snapshot.id, number) {
                RecordMatch::Same
            } else {
                journal.seen(self.data, stamp, taken)?
            };
            match seen {
                RecordMatch::Never => {}
                RecordMatch::Same => {
                    self.done.repeated += 1;
                    taken.repeated.push(number);
                    continue;
                }
                RecordMatch::Other => {
                    let why = format!("another record has its id {}", record.id());
                    reader.set_aside(number, &record, &why);
                    continue;
                }
            }
            match sum::fields(&record) {
                Ok(fields) => snapshot.totals.add(record.id(), &fields),
                Err(bad) => {
                    reader.set_aside(number, &record, &bad.to_string());
                    continue;
                }
            }
            let meeting = snapshot.meet(number, stamp)?;
            if !matches!(meeting, RecordPlacement::New) || !snapshot.has_room_for(&record) {
                self.write_batch(snapshot, journal)?;
            }
            journal.learn(stamp, taken);
            match meeting {
                RecordPlacement::Put => {
                    self.done.records += 1;
                    continue;
                }
                RecordPlacement::First(name, error) => snapshot.expected = Some((name, error)),
                RecordPlacement::New => {}
            }
            snapshot.add(&taken.entry, number, record);
            if snapshot.records.len() == snapshot.size {
                self.write_batch(snapshot, journal)?;
            }
        }
        let is_cut = !reader.is_whole();
        (taken.lines, taken.aside) = reader.account()?;
        snapshot.entry_read(taken.lines, is_cut);
        let aside = taken.lines_aside();
        // A file that is not an entry has no lines, and counts as one thing set aside.
        let is_foreign = taken.lines == 0;
        self.done.aside += aside.max(u64::from(is_foreign));
        Ok(())
    }

    fn write_batch(
        &mut self,
        snapshot: &mut SnapshotProgress,
        journal: &mut EntryJournal,
    ) -> Result<(), Error> {
        let Some(batch) = snapshot.cut() else {
            return Ok(());
        };
        if let Some((name, error)) = snapshot.expected.take()
            && name != batch.file_name()
        {
            // Some of its records may be in a batch that cannot be read.
            return Err(error);
        }
        self.done.records += batch.records().len();
        let again = snapshot.resumed.is_some();
        if self.spool.put(&batch, again)? {
            self.done.batches += 1;
        }
        // After a crash, lines of an entry may turn up in batches of later ones.
        if again {
            Ok(())
        } else {
            journal.write_waiting()
        }
    }

    /// Tries again to complete the totals, if a file of them could not be read.
    pub(super) fn repair_totals(&mut self) -> Result<(), Error> {
        let (disk, data) = (&**self.disk, self.data);
        if !totals::are_incomplete(disk, data)? {
            return Ok(());
        }
        if let Some(error) = &self.kept.unreadable_totals
            && files::read_bounded(disk, error.path())
                .is_err_and(|error| error.kind() != io::ErrorKind::NotFound)
        {
            return Ok(());
        }
        let days = entry_journal::days(data, None)?;
        let unreadable = totals::repair(disk, data, &days, new_id(), Check::Hours)?;
        if unreadable.is_none() {
            totals::note_complete(disk, data)?;
        }
        self.kept.note_totals(unreadable);
        Ok(())
    }
}
