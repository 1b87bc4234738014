//! The journal of consolidated entries, with the ids of their records.
//!
//! ```text
//! {"snapshot":"<uuid>","entry":"<uuid>.jsonl","lines":3,"aside":[[2,2]],"records":2,"ids":["<uuid> <crc>",..],"crc":..}
//! ```
//!
//! The event of an entry is written to the journal only after all records of the entry are in
//! batches. Otherwise, after a crash in between, records in no batch would be taken for repeated
//! ones and lost.
//!
//! A record that is staged again, after an error or a crash, is recognized by its id and counted
//! once. That holds for at least the last [`WINDOW`] records. Only a Bloom filter of the ids is in
//! memory: ids that it reports as known are looked up in the journal.
//!
//! While the disk is too full for the journal, the ids are stored in the reserve, space that is
//! preallocated for a full disk: see [`held_ids`].

mod event;
mod held_ids;

use std::collections::{HashMap, HashSet};
use std::io;
use std::sync::Arc;

use uuid::Uuid;

use crate::data_dir::DataDir;
use crate::disk::Disk;
use crate::error::Error;
use crate::fingerprint::RecordFingerprint;
use crate::journal::{Journal, JournalKind, JournalLine};
use crate::known_ids::KnownIds;
use crate::reserve::Reserve;
pub(crate) use event::{ConsolidatedEntry, EntrySums, RecordsPerDay};
pub(crate) use held_ids::HeldIds;

/// Number of record ids in a journal file (a generation) at which the next file begins. The
/// previous file is kept, so that repeated records are recognized among at least this many records.
pub(crate) const WINDOW: u64 = 250_000;

/// Returns for each day the number of records that its totals must include at least, to detect
/// totals that lack records. The totals may include more: earlier versions did not count days in
/// the journal. Records of the snapshot `unfinished` do not count, because the totals may not have
/// them yet.
pub(crate) fn days(data: &DataDir, unfinished: Option<Uuid>) -> Result<RecordsPerDay, Error> {
    let mut sums = EntrySums::default();
    JournalKind::Entries.read(data, &mut |_, read| match read {
        JournalLine::Head(before) => sums = before,
        JournalLine::Event(text) => {
            if let Ok(consolidated) = serde_json::from_str::<ConsolidatedEntry>(text)
                && Some(consolidated.snapshot) != unfinished
            {
                sums.add(&consolidated);
            }
        }
        // Damaged lines are skipped here: `verify` reports them.
        JournalLine::Damaged(_) => {}
    })?;
    Ok(sums.days)
}

/// Returns the names in `entries` that the journal has in another snapshot as well. A batch that
/// names such an entry may have been made of an earlier entry with the same name.
pub(crate) fn reused(
    data: &DataDir,
    snapshot: Uuid,
    entries: &[String],
) -> Result<HashSet<String>, Error> {
    let entries: HashSet<&str> = entries.iter().map(String::as_str).collect();
    let mut reused = HashSet::new();
    JournalKind::Entries.read::<EntrySums>(data, &mut |_, read| {
        if let JournalLine::Event(text) = read
            && let Ok(consolidated) = serde_json::from_str::<ConsolidatedEntry>(text)
            && consolidated.snapshot != snapshot
            && entries.contains(consolidated.entry.as_str())
        {
            reused.insert(consolidated.entry);
        }
    })?;
    Ok(reused)
}

/// Writer of the entry journal, with the known ids: those of consolidated records, by which
/// repeated records are recognized.
#[derive(Debug)]
pub(crate) struct EntryJournal {
    disk: Arc<dyn Disk>,
    reserve: Reserve,
    /// Open file of the entry journal. `None`: the disk is too full to open the journal, and events
    /// of entries go to the reserve.
    journal: Option<Journal>,
    /// Id of the snapshot whose consolidated entries are being added to the journal.
    snapshot: Uuid,
    /// Numbers of entries and records in all events. The first line of the next journal file gets
    /// these sums.
    sums: EntrySums,
    /// Number of record ids in the current journal file. The next file begins at [`WINDOW`] ids.
    ids: u64,
    /// Filter of the record ids in the current journal file and in the reserve, by which repeated
    /// records are recognized.
    known: KnownIds,
    /// Filter of the record ids in the previous journal file, by which repeated records are still
    /// recognized.
    known_before: KnownIds,
    /// Ids of all records that are known as consolidated, with the records' checksums. Loaded when
    /// a filter first reports an id as known, because the filter may be wrong.
    exact: Option<HashMap<Uuid, u32>>,
    /// Entries of this snapshot that were in the journal before a crash, by name. They are read
    /// again, and until then their ids do not count as known.
    already_journaled: HashMap<String, ConsolidatedEntry>,
    /// Names of the entries of this snapshot that were read so far. Ids that the journal has of its
    /// other entries do not count as known.
    read_entries: HashSet<String>,
    /// Entries that were read, but whose records are not all in batches yet. Until then the journal
    /// must not have them.
    pending: Vec<ConsolidatedEntry>,
    /// Entries whose records are in batches, but that could not be written to the journal because
    /// the disk is full.
    unwritten: Vec<ConsolidatedEntry>,
    /// Record ids and sums that the reserve for a full disk had when it was last read or written.
    held: HeldIds,
    /// Entry names of the events that were already flushed from the reserve to the journal. A flush
    /// that was interrupted does not write these events again.
    flushed: HashSet<String>,
    /// Number of record ids that were added to the reserve since this counter last rotated the
    /// filters. At [`WINDOW`] ids, `known` becomes `known_before`, as with a new journal file.
    /// Otherwise the filters would grow as long as the disk is full.
    held_since_rotation: u64,
}

/// Result of looking a record up among the consolidated records.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RecordMatch {
    /// No record with this id is known, so the record goes into a batch.
    New,
    /// The same record was consolidated before, so it is skipped.
    Same,
    /// A different record with this id was consolidated before, so the record goes to `failed/`.
    Conflict,
}

impl EntryJournal {
    /// Opens the journal for adding the entries of this snapshot. After a crash, ids of this
    /// snapshot do not count as known, so that its records are not taken for repeated ones.
    pub(crate) fn open(
        disk: &Arc<dyn Disk>,
        data: &DataDir,
        snapshot: Uuid,
    ) -> Result<Self, Error> {
        let reserve = Reserve::new(&data.staging);
        let journal = match Journal::open::<EntrySums>(disk, data, JournalKind::Entries) {
            Err(error) if error.is_full() && reserve.exists() => None,
            journal => Some(journal?),
        };
        let mut opened = Self {
            disk: Arc::clone(disk),
            reserve,
            journal,
            snapshot,
            sums: EntrySums::default(),
            ids: 0,
            known: KnownIds::default(),
            known_before: KnownIds::default(),
            exact: None,
            already_journaled: HashMap::new(),
            read_entries: HashSet::new(),
            pending: Vec::new(),
            unwritten: Vec::new(),
            held: HeldIds::default(),
            flushed: HashSet::new(),
            held_since_rotation: 0,
        };
        opened.read(data)?;
        Ok(opened)
    }

    /// Reads the ids of consolidated records, and the sums (numbers of entries and records), from
    /// the journal and the reserve.
    fn read(&mut self, data: &DataDir) -> Result<(), Error> {
        self.held = HeldIds::read(&*self.disk, &self.reserve)?;
        JournalKind::Entries.read(data, &mut |position, line| {
            let (path, number) = (position.path.display(), position.line);
            match line {
                JournalLine::Head(sums) => {
                    (self.sums, self.ids) = (sums, 0);
                    self.known_before = std::mem::take(&mut self.known);
                }
                JournalLine::Event(text) => match ConsolidatedEntry::parse(text) {
                    Ok(consolidated) => self.add_read(consolidated),
                    Err(why) => tracing::warn!(%path, line = number, why, "invalid event"),
                },
                JournalLine::Damaged(why) => {
                    tracing::warn!(%path, line = number, why, "damaged line in a journal");
                }
            }
        })?;
        if !self.held.is_flushed(&self.flushed) {
            for fingerprint in self.held.ids(&*self.disk, &self.reserve)? {
                self.known.insert(fingerprint.id);
            }
        }
        Ok(())
    }

    /// Adds an event that was read from the journal to the sums and the known ids in memory. Ids of
    /// the current snapshot do not count as known yet: after a crash, its records must not be taken
    /// for repeated ones.
    fn add_read(&mut self, consolidated: ConsolidatedEntry) {
        self.sums.add(&consolidated);
        self.ids += consolidated.ids.len() as u64;
        if consolidated.snapshot == self.held.id {
            self.flushed.insert(consolidated.entry.clone());
        }
        if consolidated.snapshot == self.snapshot {
            let name = consolidated.entry.clone();
            self.already_journaled.insert(name, consolidated);
        } else {
            for fingerprint in &consolidated.ids {
                self.known.insert(fingerprint.id);
            }
        }
    }

    /// Frees the memory of the exact set of known ids, of which only the filters stay, and reopens
    /// the journal for reading only. The next entry that is written opens it for writing again.
    pub(crate) fn stop_writing(&mut self) -> Result<(), Error> {
        self.exact = None;
        self.journal.as_mut().map_or(Ok(()), Journal::stop_writing)
    }

    /// Prepares the journal for another snapshot. Returns `None` if another process has written to
    /// the journal: then it must be opened again.
    pub(crate) fn reuse_for(mut self, snapshot: Uuid) -> Option<Self> {
        self.snapshot = snapshot;
        self.already_journaled.clear();
        self.read_entries.clear();
        self.pending.clear();
        self.unwritten.clear();
        let is_same = HeldIds::read(&*self.disk, &self.reserve).is_ok_and(|held| held == self.held);
        let is_current = self.journal.as_ref().is_some_and(Journal::is_current);
        (is_same && is_current).then_some(self)
    }

    /// True if the journal had entries of this snapshot when it was opened.
    pub(crate) fn has_entries_of_snapshot(&self) -> bool {
        !self.already_journaled.is_empty()
    }

    /// Looks a record up among the records of the journal and of this entry.
    pub(crate) fn classify(
        &mut self,
        data: &DataDir,
        fingerprint: RecordFingerprint,
        consolidated: &ConsolidatedEntry,
    ) -> Result<RecordMatch, Error> {
        if !self.known.may_have(fingerprint.id) && !self.known_before.may_have(fingerprint.id) {
            return Ok(RecordMatch::New);
        }
        if self.exact.is_none() {
            let mut exact = self.load_exact(data)?;
            exact.extend(consolidated.ids.iter().map(id_and_checksum));
            self.exact = Some(exact);
        }
        let exact = self
            .exact
            .as_ref()
            .and_then(|exact| exact.get(&fingerprint.id));
        Ok(match exact {
            None => RecordMatch::New,
            Some(checksum) if *checksum == fingerprint.checksum => RecordMatch::Same,
            Some(_) => RecordMatch::Conflict,
        })
    }

    /// Loads the ids and checksums of all consolidated records from the journal and the reserve,
    /// because a filter may wrongly report a new id as known.
    fn load_exact(&self, data: &DataDir) -> Result<HashMap<Uuid, u32>, Error> {
        let mut exact = HashMap::new();
        JournalKind::Entries.read::<EntrySums>(data, &mut |_, read| {
            let JournalLine::Event(text) = read else {
                return; // Damaged lines were logged when the journal was opened.
            };
            if let Ok(consolidated) = ConsolidatedEntry::parse(text)
                && (consolidated.snapshot != self.snapshot
                    || self.read_entries.contains(&consolidated.entry))
            {
                exact.extend(consolidated.ids.iter().map(id_and_checksum));
            }
        })?;
        if !self.held.is_flushed(&self.flushed) {
            let held = self.held.ids(&*self.disk, &self.reserve)?;
            exact.extend(held.iter().map(id_and_checksum));
        }
        let unwritten = self.unwritten.iter().chain(&self.pending);
        let unwritten = unwritten.flat_map(|consolidated| &consolidated.ids);
        exact.extend(unwritten.map(id_and_checksum));
        Ok(exact)
    }

    /// Adds a record to an entry and to the known ids.
    pub(crate) fn add_record(
        &mut self,
        fingerprint: RecordFingerprint,
        consolidated: &mut ConsolidatedEntry,
    ) {
        consolidated.records += 1;
        consolidated.ids.push(fingerprint);
        self.remember(fingerprint);
    }

    fn remember(&mut self, fingerprint: RecordFingerprint) {
        self.known.insert(fingerprint.id);
        if let Some(exact) = &mut self.exact {
            exact.insert(fingerprint.id, fingerprint.checksum);
        }
    }

    /// Adds an entry to those that [`EntryJournal::write_pending`] will write, unless the journal
    /// had the entry before a crash. If the entry were written now and a crash came before its
    /// batches, its records would be taken for repeated ones and lost.
    pub(crate) fn add(&mut self, consolidated: ConsolidatedEntry) {
        self.read_entries.insert(consolidated.entry.clone());
        match self.already_journaled.get(&consolidated.entry) {
            Some(journaled) => {
                // The entry may have lost records since its event was written to the journal. Add
                // the ids in that event to the known ids as well: otherwise a lost record that is
                // staged again would be counted twice.
                for fingerprint in journaled.ids.clone() {
                    self.remember(fingerprint);
                }
            }
            None => self.pending.push(consolidated),
        }
    }

    /// Returns an entry of this snapshot that was in the journal before a crash.
    pub(crate) fn already_journaled(&self, entry: &str) -> Option<&ConsolidatedEntry> {
        self.already_journaled.get(entry)
    }

    /// Returns an entry that was added, but is not written to the journal yet.
    pub(crate) fn pending(&mut self, entry: &str) -> Option<&mut ConsolidatedEntry> {
        let mut pending = self.pending.iter_mut();
        pending.find(|consolidated| consolidated.entry == entry)
    }

    /// Removes entries that were added, but are not written to the journal yet.
    pub(crate) fn remove_pending(&mut self, should_remove: impl Fn(&ConsolidatedEntry) -> bool) {
        self.pending
            .retain(|consolidated| !should_remove(consolidated));
    }

    /// Writes the pending entries to the journal. All their records must be in batches. While the
    /// disk is full, keeps the entries for the reserve instead.
    pub(crate) fn write_pending(&mut self) -> Result<(), Error> {
        for consolidated in std::mem::take(&mut self.pending) {
            match self.write(&consolidated) {
                Err(error) if error.is_full() && self.reserve.exists() => {
                    self.unwritten.push(consolidated);
                }
                written => written?,
            }
        }
        Ok(())
    }

    fn write(&mut self, consolidated: &ConsolidatedEntry) -> Result<(), Error> {
        let Some(journal) = &mut self.journal else {
            let full = io::Error::from(io::ErrorKind::StorageFull);
            return Err(Error::new(
                "begin a journal beside",
                self.reserve.path(),
                full,
            ));
        };
        journal.add(consolidated)?;
        self.sums.add(consolidated);
        self.ids += consolidated.ids.len() as u64;
        Ok(())
    }

    /// Returns for each day the number of records that its totals must include at least. Totals
    /// with fewer records are rebuilt.
    pub(crate) fn days(&self) -> &RecordsPerDay {
        &self.sums.days
    }

    pub(crate) fn sync(&mut self) -> Result<(), Error> {
        self.journal.as_mut().map_or(Ok(()), Journal::sync)
    }

    /// Stores in the reserve the entries that a full disk kept out of the journal, and marks the
    /// snapshot as written there. Returns `false` if there are no such entries.
    pub(crate) fn store_unwritten_in_reserve(&mut self) -> Result<bool, Error> {
        if self.unwritten.is_empty() {
            return Ok(false);
        }
        let unwritten = std::mem::take(&mut self.unwritten);
        self.clear_flushed()?;
        self.held = HeldIds::add(&self.reserve, &*self.disk, self.snapshot, &unwritten)?;
        self.held_since_rotation += unwritten
            .iter()
            .map(|consolidated| consolidated.records)
            .sum::<u64>();
        if self.held_since_rotation >= WINDOW {
            // Rotate the filters, as at the beginning of a new journal file. Otherwise they would
            // grow as long as the disk is full.
            self.known_before = std::mem::take(&mut self.known);
            self.held_since_rotation = 0;
            self.exact = None;
        }
        Ok(true)
    }

    /// Flushes the ids in the reserve (space preallocated for a full disk) to the journal, as far
    /// as the disk has room. Clears the reserve when the journal has all of them.
    pub(crate) fn flush_reserve(&mut self) -> Result<(), Error> {
        self.clear_flushed()?;
        if self.held.is_empty() {
            return Ok(());
        }
        for consolidated in self.held.lines(&*self.disk, &self.reserve)? {
            if !self.flushed.contains(&consolidated.entry) {
                if self.held.is_last_event(&consolidated) {
                    // Sync the events with ids before the last event, which has the sums, is
                    // written: once the journal has the last event, the ids in the reserve are
                    // ignored. A power failure could otherwise keep the last event and lose ids.
                    self.sync()?;
                }
                self.write(&consolidated)?;
                self.flushed.insert(consolidated.entry);
            }
        }
        self.sync()?;
        self.clear_flushed()
    }

    /// Clears the reserve (space preallocated for a full disk) if the journal has all of its ids.
    fn clear_flushed(&mut self) -> Result<(), Error> {
        if self.held.is_flushed(&self.flushed) {
            self.held = HeldIds::clear(&self.reserve, &*self.disk)?;
            self.flushed.clear();
        }
        Ok(())
    }

    /// Begins the next journal file if the current one has [`WINDOW`] ids. Must not be called while
    /// a snapshot is unfinished: its resumption after a crash needs the ids that were known at its
    /// beginning.
    pub(crate) fn rotate_if_full(&mut self) -> Result<(), Error> {
        if self.ids >= WINDOW
            && let Some(journal) = &mut self.journal
        {
            journal.rotate(&self.sums)?;
            self.ids = 0;
            self.known_before = std::mem::take(&mut self.known);
            self.exact = None; // The list has ids of the removed journal file.
        }
        Ok(())
    }
}

fn id_and_checksum(fingerprint: &RecordFingerprint) -> (Uuid, u32) {
    (fingerprint.id, fingerprint.checksum)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::disk::RealDisk;
    use crate::record::Record;
    use crate::time::new_id;

    #[test]
    fn id_is_known_for_two_generations_in_a_reused_and_in_a_reopened_journal() {
        let dir = tempfile::tempdir().unwrap();
        let data = DataDir::new(dir.path());
        let disk: Arc<dyn Disk> = Arc::new(RealDisk);
        data.make(&*disk).unwrap();
        let records: Vec<_> = (0..3).map(|_| Record::parse("{}").unwrap()).collect();
        let mut reused = EntryJournal::open(&disk, &data, new_id()).unwrap();
        for record in &records {
            let mut consolidated = ConsolidatedEntry::new(reused.snapshot, "x.jsonl");
            reused.add_record(RecordFingerprint::new(record), &mut consolidated);
            reused.add(consolidated);
            reused.write_pending().unwrap();
            reused.ids = WINDOW; // as if the generation were full
            reused.rotate_if_full().unwrap();
            reused = reused.reuse_for(new_id()).unwrap();
        }
        let mut reopened = EntryJournal::open(&disk, &data, new_id()).unwrap();
        for journal in [&mut reused, &mut reopened] {
            let other = ConsolidatedEntry::new(new_id(), "y.jsonl");
            let mut classify = |record| {
                journal
                    .classify(&data, RecordFingerprint::new(record), &other)
                    .unwrap()
            };
            let found: Vec<_> = records.iter().map(&mut classify).collect();
            assert_eq!(
                found,
                [RecordMatch::New, RecordMatch::New, RecordMatch::Same]
            );
            assert_eq!((journal.sums.records, journal.ids), (3, 0));
        }
        let records: u64 = days(&data, None).unwrap().values().sum();
        assert_eq!(records, 3, "includes records of removed generations");
    }

    #[test]
    fn id_that_only_the_filter_reports_as_known_is_new() {
        let dir = tempfile::tempdir().unwrap();
        let data = DataDir::new(dir.path());
        let disk: Arc<dyn Disk> = Arc::new(RealDisk);
        data.make(&*disk).unwrap();
        let [known, new] =
            ["{}", "{}"].map(|text| RecordFingerprint::new(&Record::parse(text).unwrap()));
        let mut journal = EntryJournal::open(&disk, &data, new_id()).unwrap();
        let mut consolidated = ConsolidatedEntry::new(journal.snapshot, "x.jsonl");
        journal.add_record(known, &mut consolidated);
        journal.known.insert(new.id); // as if other ids had set its bits
        let other = RecordFingerprint {
            checksum: !known.checksum,
            ..known
        };
        for _ in ["while its entry is read", "after its entry was read"] {
            let mut classify =
                |fingerprint| journal.classify(&data, fingerprint, &consolidated).unwrap();
            assert_eq!(classify(new), RecordMatch::New);
            assert_eq!(classify(known), RecordMatch::Same);
            assert_eq!(classify(other), RecordMatch::Conflict);
            let next = ConsolidatedEntry::new(journal.snapshot, "y.jsonl");
            journal.add(std::mem::replace(&mut consolidated, next));
            journal.write_pending().unwrap();
            journal.exact = None;
        }
    }
}
