//! Writing of a snapshot: its batches, the journal of its entries, and the totals.

use std::collections::HashSet;
use std::io;

use uuid::Uuid;

use super::ConsolidationRun;
use super::excluded::ExcludedEntries;
use super::resumed::{EarlierBatches, RecordPlacement};
use crate::batch::{self, Batch, Part};
use crate::entry_journal::{self, ConsolidatedEntry, EntryJournal, RecordMatch};
use crate::entry_records::EntryRecords;
use crate::error::Error;
use crate::files;
use crate::fingerprint::RecordFingerprint;
use crate::record::Record;
use crate::snapshot::Snapshot;
use crate::time::new_id;
use crate::totals::{self, DayCheck, Grouping, Totals};

/// State of a snapshot while its entries are read.
pub(super) struct SnapshotProgress {
    id: Uuid,
    /// Maximum number of records in a batch.
    batch_size: usize,
    /// Batches of the snapshot that were written before a crash. `None` if the snapshot is new.
    pub(super) earlier: Option<EarlierBatches>,
    /// Lines that are in batches of other snapshots, from which their entries were excluded as
    /// unreadable. These lines are skipped.
    pub(super) excluded: ExcludedEntries,
    /// Names of the entries whose files are missing or cannot be read. Only their lines that are in
    /// batches from before a crash are journaled.
    pub(super) unread: HashSet<String>,
    /// Index of the current entry in the snapshot.
    place: usize,
    /// File name and read error of an existing batch that cannot be read and that, by its name,
    /// begins with the first record of the current batch. The name is derived from all records of a
    /// batch. If the complete current batch gets another name, some records would be in both
    /// batches, so consolidation fails with the error.
    expected: Option<(String, Error)>,
    /// Parts of the current batch: the entries that its records come from, with the numbers of the
    /// records in each entry.
    parts: Vec<Part>,
    records: Vec<Record>,
    /// Total length in bytes of the records in the current batch. It must not exceed
    /// [`batch::MAX_BYTES`] unless the batch has a single record.
    bytes: usize,
    totals: Totals,
}

impl SnapshotProgress {
    pub(super) fn new(snapshot: &Snapshot, excluded: ExcludedEntries, grouping: &Grouping) -> Self {
        Self {
            id: snapshot.id,
            excluded,
            batch_size: snapshot.batch_size.max(1),
            earlier: None,
            unread: HashSet::new(),
            place: 0,
            expected: None,
            parts: Vec::new(),
            records: Vec::new(),
            bytes: 0,
            totals: Totals::new(snapshot.id, grouping),
        }
    }

    fn locate(
        &mut self,
        line: u64,
        fingerprint: RecordFingerprint,
    ) -> Result<RecordPlacement, Error> {
        match &mut self.earlier {
            Some(earlier) => earlier.locate(self.place, line, fingerprint),
            None => Ok(RecordPlacement::New),
        }
    }

    /// Stores the number of the last line that could be read of the current entry, or that its seal
    /// counts, if the snapshot is resumed after a crash. Later lines that are in batches from
    /// before the crash count as lost by the entry.
    fn set_entry_read(&mut self, line: u64, is_truncated: bool) {
        if let Some(earlier) = &mut self.earlier {
            earlier.set_entry_read(self.place, line, is_truncated);
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

    /// Ends the current batch. Returns `None` if it is empty.
    fn take_batch(&mut self) -> Option<Batch> {
        let (parts, records) = (
            std::mem::take(&mut self.parts),
            std::mem::take(&mut self.records),
        );
        self.bytes = 0;
        (!records.is_empty()).then(|| Batch::new(parts, records))
    }
}

impl ConsolidationRun<'_> {
    /// Writes the batches of a snapshot that do not exist yet, and adds its entries to the journal.
    pub(super) fn write(
        &mut self,
        progress: &mut SnapshotProgress,
        journal: &mut EntryJournal,
        names: &[String],
    ) -> Result<(), Error> {
        for (place, name) in names.iter().enumerate() {
            let opened = if progress.unread.contains(name) {
                None
            } else {
                EntryRecords::open(&**self.disk, self.data, name)?
            };
            progress.place = place;
            let mut consolidated = ConsolidatedEntry::new(progress.id, name);
            // A missing entry is no error: another program may have moved it away since the
            // snapshot was written.
            match opened {
                Some(reader) => self.write_entry(progress, journal, reader, &mut consolidated)?,
                None if progress.earlier.is_none() => continue,
                None => {
                    progress.unread.insert(name.clone());
                    progress.set_entry_read(0, true);
                }
            }
            self.add_lines_of_batches(progress, journal, &mut consolidated)?;
            journal.add(consolidated);
        }
        self.write_batch(progress, journal)?;
        if let Some(earlier) = &mut progress.earlier {
            earlier.check_unreadable()?;
            earlier.account_for_missing_lines(journal);
            let unread = &progress.unread;
            journal.remove_pending(|entry| entry.lines == 0 && unread.contains(&entry.entry));
        }
        self.spool.flush()?;
        journal.write_pending()
    }

    /// Adds the records that are in batches from before a crash and that their entry has lost
    /// since.
    fn add_lines_of_batches(
        &mut self,
        progress: &mut SnapshotProgress,
        journal: &mut EntryJournal,
        consolidated: &mut ConsolidatedEntry,
    ) -> Result<(), Error> {
        let Some(earlier) = &mut progress.earlier else {
            return Ok(());
        };
        let name = consolidated.entry.clone();
        for (line, batched) in earlier.take_missing_lines(progress.place) {
            let excluded = &progress.excluded;
            if excluded.is_in_other_snapshot(&name, progress.id, line)
                || journal.classify(self.data, batched.fingerprint, consolidated)?
                    != RecordMatch::New
            {
                continue;
            }
            if let Some(record) = earlier.load(self.spool, &batched)? {
                // `add` rejects only invalid records, which consolidation puts into no batch. A
                // record from a batch is therefore never rejected, and the result is ignored.
                let _ = progress.totals.add(&record);
            } else {
                let why = "the record's batch was delivered while the entry was read";
                tracing::warn!(
                    entry = name,
                    line,
                    why,
                    "the totals lack a record that its entry has lost"
                );
            }
            earlier.add_missing_line(progress.place, line, consolidated);
            journal.add_record(batched.fingerprint, consolidated);
            self.done.records += 1;
        }
        Ok(())
    }

    /// Writes the totals, and repairs days whose totals are missing. `is_opened` is true if the
    /// journal was read from its files now: then all days are checked.
    pub(super) fn write_totals(
        &mut self,
        progress: &mut SnapshotProgress,
        journal: &mut EntryJournal,
        is_opened: bool,
    ) -> Result<(), Error> {
        let (disk, data, id) = (&**self.disk, self.data, progress.id);
        let totals = std::mem::take(&mut progress.totals);
        let unfolded = totals.fold(disk, data, id)?;
        let check = if is_opened {
            DayCheck::Journal
        } else {
            DayCheck::Missing
        };
        let days = journal.days();
        let unrepaired = totals::repair(disk, data, self.grouping, days, id, check)?;
        if unfolded.is_some() {
            self.state.set_unreadable_totals(unfolded.or(unrepaired));
        }
        journal.sync()
    }

    /// Reads an entry, and puts its records into batches. Skips records that were consolidated
    /// before. Moves invalid records, and records with the id of a different record, to `failed/`.
    fn write_entry(
        &mut self,
        progress: &mut SnapshotProgress,
        journal: &mut EntryJournal,
        mut reader: EntryRecords<'_>,
        consolidated: &mut ConsolidatedEntry,
    ) -> Result<(), Error> {
        while let Some((number, record)) = reader.next()? {
            let fingerprint = RecordFingerprint::new(&record);
            let (name, excluded) = (&consolidated.entry, &progress.excluded);
            let found = if excluded.is_in_other_snapshot(name, progress.id, number) {
                RecordMatch::Same
            } else {
                journal.classify(self.data, fingerprint, consolidated)?
            };
            match found {
                RecordMatch::New => {}
                RecordMatch::Same => {
                    self.done.repeated += 1;
                    consolidated.repeated.push(number);
                    continue;
                }
                RecordMatch::Conflict => {
                    let why = format!("a different record has the same id {}", record.id());
                    reader.set_aside(number, &record, &why);
                    continue;
                }
            }
            if let Err(bad) = progress.totals.add(&record) {
                reader.set_aside(number, &record, &bad.to_string());
                continue;
            }
            self.write_record(progress, journal, consolidated, number, record, fingerprint)?;
        }
        let is_truncated = !reader.is_whole();
        (consolidated.lines, consolidated.aside) = reader.account()?;
        progress.set_entry_read(consolidated.lines, is_truncated);
        // A foreign file has the name of an entry, but no valid line, and was moved to `failed/` as
        // a whole. Add 1 to the number of quarantined lines and files for it: otherwise the result
        // of consolidation would not count the file.
        let is_foreign = consolidated.lines == 0;
        self.done.aside += consolidated.lines_aside().max(u64::from(is_foreign));
        Ok(())
    }

    /// Adds a valid record to the journal and, unless it is in an earlier batch, to the current
    /// batch. Writes the current batch when it is full, and in front of a record that is in an
    /// earlier batch or begins an unreadable one.
    fn write_record(
        &mut self,
        progress: &mut SnapshotProgress,
        journal: &mut EntryJournal,
        consolidated: &mut ConsolidatedEntry,
        number: u64,
        record: Record,
        fingerprint: RecordFingerprint,
    ) -> Result<(), Error> {
        let placement = progress.locate(number, fingerprint)?;
        if !matches!(placement, RecordPlacement::New) || !progress.has_room_for(&record) {
            self.write_batch(progress, journal)?;
        }
        journal.add_record(fingerprint, consolidated);
        match placement {
            RecordPlacement::InBatch => {
                self.done.records += 1;
                return Ok(());
            }
            RecordPlacement::FirstOfUnreadable(name, error) => {
                progress.expected = Some((name, error));
            }
            RecordPlacement::New => {}
        }
        progress.add(&consolidated.entry, number, record);
        if progress.records.len() == progress.batch_size {
            self.write_batch(progress, journal)?;
        }
        Ok(())
    }

    fn write_batch(
        &mut self,
        progress: &mut SnapshotProgress,
        journal: &mut EntryJournal,
    ) -> Result<(), Error> {
        let Some(batch) = progress.take_batch() else {
            return Ok(());
        };
        if let Some((name, error)) = progress.expected.take()
            && name != batch.file_name()
        {
            // The unreadable batch begins with the same record, but has other records than the
            // current batch. If this batch were written, some records could be in both.
            return Err(error);
        }
        self.done.records += batch.records().len();
        let is_resumed = progress.earlier.is_some();
        if self.spool.put(&batch, is_resumed)? {
            self.done.batches += 1;
        }
        // If the snapshot is resumed after a crash, journal no entry before all entries were read.
        // Until then, an earlier batch may turn out to have lines that the entry has lost, and an
        // event in the journal cannot be changed.
        if is_resumed {
            Ok(())
        } else {
            journal.write_pending()
        }
    }

    /// Completes the totals if an earlier consolidation could not read one of their files.
    pub(super) fn repair_totals(&mut self) -> Result<(), Error> {
        let (disk, data) = (&**self.disk, self.data);
        if !totals::are_incomplete(disk, data)? {
            return Ok(());
        }
        if let Some(error) = &self.state.unreadable_totals
            && files::read_bounded(disk, error.path())
                .is_err_and(|error| error.kind() != io::ErrorKind::NotFound)
        {
            return Ok(());
        }
        let days = entry_journal::days(data, None)?;
        let check = DayCheck::Hours;
        let unreadable = totals::repair(disk, data, self.grouping, &days, new_id(), check)?;
        if unreadable.is_none() {
            totals::note_complete(disk, data)?;
        }
        self.state.set_unreadable_totals(unreadable);
        Ok(())
    }
}
