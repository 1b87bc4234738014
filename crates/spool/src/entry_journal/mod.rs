//! The journal of what was consolidated: every entry with its lines, and the ids of its records.
//!
//! ```text
//! {"snapshot":"<uuid>","entry":"<uuid>.jsonl","lines":3,"aside":[[2,2]],"records":2,"ids":["<uuid> <crc>",..],"crc":..}
//! ```
//!
//! An entry is noted when its records are in batches.
//!
//! The ids keep a record that is staged again, after an error or a crash, from being counted again.
//! That holds for at least the last [`WINDOW`] records. Only a filter of them is in the memory: what
//! it takes for known is looked up in the journal.
//!
//! On a disk that is too full for the journal, the reserve has the ids instead: see [`held_ids`].

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

/// How many ids one generation of the journal has.
pub(crate) const WINDOW: u64 = 250_000;

/// Returns how many records the totals of each day must have at least. A set that is not finished
/// does not count.
pub(crate) fn days(data: &DataDir, unfinished: Option<Uuid>) -> Result<RecordsPerDay, Error> {
    let mut sums = EntrySums::default();
    JournalKind::Entries.read(data, &mut |_, read| match read {
        JournalLine::Head(before) => sums = before,
        JournalLine::Event(text) => {
            if let Ok(taken) = serde_json::from_str::<ConsolidatedEntry>(text)
                && Some(taken.snapshot) != unfinished
            {
                sums.add(&taken);
            }
        }
        // `verify` names it.
        JournalLine::Damaged(_) => {}
    })?;
    Ok(sums.days)
}

/// Returns those of these entries that were consolidated with another set: their names were used again.
pub(crate) fn reused(
    data: &DataDir,
    set: Uuid,
    entries: &[String],
) -> Result<HashSet<String>, Error> {
    let entries: HashSet<&str> = entries.iter().map(String::as_str).collect();
    let mut reused = HashSet::new();
    JournalKind::Entries.read::<EntrySums>(data, &mut |_, read| {
        if let JournalLine::Event(text) = read
            && let Ok(taken) = serde_json::from_str::<ConsolidatedEntry>(text)
            && taken.snapshot != set
            && entries.contains(taken.entry.as_str())
        {
            reused.insert(taken.entry);
        }
    })?;
    Ok(reused)
}

/// The journal as the consolidator keeps it.
#[derive(Debug)]
pub(crate) struct EntryJournal {
    disk: Arc<dyn Disk>,
    reserve: Reserve,
    /// `None`: the disk is too full to begin or to renew it. The reserve has what comes.
    journal: Option<Journal>,
    snapshot: Uuid,
    sums: EntrySums,
    /// In this generation.
    ids: u64,
    /// What was taken: in this generation ...
    known: KnownIds,
    /// ... and in the one before it.
    before: KnownIds,
    /// All of it, once an id has come that may be known.
    exact: Option<HashMap<Uuid, u32>>,
    /// The entries that a crash had left in the journal with this snapshot. They are read again, and
    /// their ids are not known before that.
    left: HashMap<String, ConsolidatedEntry>,
    /// The entries of this snapshot that were read.
    done: HashSet<String>,
    /// Those among them that are not in the journal yet, since not all their records are in batches.
    waiting: Vec<ConsolidatedEntry>,
    /// Those among them for which the disk is too full.
    unwritten: Vec<ConsolidatedEntry>,
    /// Content of the reserve when it was last read or written.
    held: HeldIds,
    /// Lines of the journal that repeat what the reserve has.
    flushed: HashSet<String>,
    /// Ids that were added to the reserve since `before` was begun.
    held_since_turn: u64,
}

/// Whether a record was seen before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RecordMatch {
    Never,
    /// The same record.
    Same,
    /// Another record with the same id.
    Other,
}

impl EntryJournal {
    /// Opens the journal to add this snapshot to it. If a crash interrupted that, it is gone on with:
    /// what was known is what was known before it.
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
        let mut all = Self {
            disk: Arc::clone(disk),
            reserve,
            journal,
            snapshot,
            sums: EntrySums::default(),
            ids: 0,
            known: KnownIds::default(),
            before: KnownIds::default(),
            exact: None,
            left: HashMap::new(),
            done: HashSet::new(),
            waiting: Vec::new(),
            unwritten: Vec::new(),
            held: HeldIds::default(),
            flushed: HashSet::new(),
            held_since_turn: 0,
        };
        let held = HeldIds::read(&**disk, &all.reserve)?;
        JournalKind::Entries.read(data, &mut |spot, read| match read {
            JournalLine::Head(sums) => {
                (all.sums, all.ids) = (sums, 0);
                all.before = std::mem::take(&mut all.known);
            }
            JournalLine::Event(text) => {
                let Ok(taken) = ConsolidatedEntry::parse(text) else {
                    tracing::warn!(path = %spot.path.display(), line = spot.line, "not an entry");
                    return;
                };
                all.sums.add(&taken);
                all.ids += taken.ids.len() as u64;
                if taken.snapshot == held.id {
                    all.flushed.insert(taken.entry.clone());
                }
                if taken.snapshot == snapshot {
                    all.left.insert(taken.entry.clone(), taken);
                } else {
                    taken
                        .ids
                        .iter()
                        .for_each(|stamp| all.known.insert(stamp.id));
                }
            }
            JournalLine::Damaged(why) => {
                tracing::warn!(path = %spot.path.display(), line = spot.line, why, "damaged");
            }
        })?;
        all.held = held;
        if !all.held.is_flushed(&all.flushed) {
            for stamp in all.held.ids(&**disk, &all.reserve)? {
                all.known.insert(stamp.id);
            }
        }
        Ok(all)
    }

    /// Nothing is written for a while.
    pub(crate) fn rest(&mut self) -> Result<(), Error> {
        self.exact = None;
        self.journal.as_mut().map_or(Ok(()), Journal::rest)
    }

    /// The same journal for a new snapshot, unless somebody else has written to it: then it must be
    /// opened.
    pub(crate) fn again(mut self, snapshot: Uuid) -> Option<Self> {
        self.snapshot = snapshot;
        self.left.clear();
        self.done.clear();
        self.waiting.clear();
        self.unwritten.clear();
        let is_same = HeldIds::read(&*self.disk, &self.reserve).is_ok_and(|held| held == self.held);
        let is_current = self.journal.as_ref().is_some_and(Journal::is_current);
        (is_same && is_current).then_some(self)
    }

    /// True if the journal has entries of this snapshot already.
    pub(crate) fn has_begun(&self) -> bool {
        !self.left.is_empty()
    }

    /// Whether a record was taken before, with an entry that is in the journal or with this one.
    pub(crate) fn seen(
        &mut self,
        data: &DataDir,
        stamp: RecordFingerprint,
        taken: &ConsolidatedEntry,
    ) -> Result<RecordMatch, Error> {
        if !self.known.may_have(stamp.id) && !self.before.may_have(stamp.id) {
            return Ok(RecordMatch::Never);
        }
        if self.exact.is_none() {
            let mut exact = self.look_up(data)?;
            exact.extend(taken.ids.iter().map(|stamp| (stamp.id, stamp.checksum)));
            self.exact = Some(exact);
        }
        let exact = self.exact.as_ref().and_then(|exact| exact.get(&stamp.id));
        Ok(match exact {
            None => RecordMatch::Never,
            Some(checksum) if *checksum == stamp.checksum => RecordMatch::Same,
            Some(_) => RecordMatch::Other,
        })
    }

    /// What is known, as the journal has it.
    fn look_up(&self, data: &DataDir) -> Result<HashMap<Uuid, u32>, Error> {
        let mut exact = HashMap::new();
        JournalKind::Entries.read::<EntrySums>(data, &mut |_, read| {
            let JournalLine::Event(text) = read else {
                return; // What is damaged was said when it was opened.
            };
            if let Ok(taken) = ConsolidatedEntry::parse(text)
                && (taken.snapshot != self.snapshot || self.done.contains(&taken.entry))
            {
                exact.extend(taken.ids.iter().map(|stamp| (stamp.id, stamp.checksum)));
            }
        })?;
        if !self.held.is_flushed(&self.flushed) {
            let held = self.held.ids(&*self.disk, &self.reserve)?;
            exact.extend(held.iter().map(|stamp| (stamp.id, stamp.checksum)));
        }
        let unwritten = self.unwritten.iter().chain(&self.waiting);
        let unwritten = unwritten.flat_map(|taken| &taken.ids);
        exact.extend(unwritten.map(|stamp| (stamp.id, stamp.checksum)));
        Ok(exact)
    }

    /// Takes a record of an entry.
    pub(crate) fn learn(&mut self, stamp: RecordFingerprint, taken: &mut ConsolidatedEntry) {
        taken.records += 1;
        taken.ids.push(stamp);
        self.remember(stamp);
    }

    fn remember(&mut self, stamp: RecordFingerprint) {
        self.known.insert(stamp.id);
        if let Some(exact) = &mut self.exact {
            exact.insert(stamp.id, stamp.checksum);
        }
    }

    /// Adds an entry, unless a crash came after that. It waits until its records are in batches: an
    /// entry that is in the journal and then gets lost must not make its records look known.
    pub(crate) fn add(&mut self, taken: ConsolidatedEntry) {
        self.done.insert(taken.entry.clone());
        match self.left.get(&taken.entry) {
            Some(left) => {
                // The entry may have lost records since.
                let ids: Vec<RecordFingerprint> = left.ids.clone();
                for stamp in ids {
                    self.remember(stamp);
                }
            }
            None => self.waiting.push(taken),
        }
    }

    /// An entry that a crash had left in the journal.
    pub(crate) fn noted(&self, entry: &str) -> Option<&ConsolidatedEntry> {
        self.left.get(entry)
    }

    /// An entry that is not in the journal yet.
    pub(crate) fn waiting(&mut self, entry: &str) -> Option<&mut ConsolidatedEntry> {
        let mut waiting = self.waiting.iter_mut();
        waiting.find(|taken| taken.entry == entry)
    }

    /// Forgets such entries.
    pub(crate) fn forget_waiting(&mut self, is_forgotten: impl Fn(&ConsolidatedEntry) -> bool) {
        self.waiting.retain(|taken| !is_forgotten(taken));
    }

    /// Writes the entries that wait: all their records are in batches.
    pub(crate) fn write_waiting(&mut self) -> Result<(), Error> {
        for taken in std::mem::take(&mut self.waiting) {
            match self.write(&taken) {
                Err(error) if error.is_full() && self.reserve.exists() => {
                    self.unwritten.push(taken);
                }
                written => written?,
            }
        }
        Ok(())
    }

    fn write(&mut self, taken: &ConsolidatedEntry) -> Result<(), Error> {
        let Some(journal) = &mut self.journal else {
            let full = io::Error::from(io::ErrorKind::StorageFull);
            return Err(Error::new(
                "begin a journal beside",
                self.reserve.path(),
                full,
            ));
        };
        journal.add(taken)?;
        self.sums.add(taken);
        self.ids += taken.ids.len() as u64;
        Ok(())
    }

    /// How many records the totals of each day must have at least.
    pub(crate) fn days(&self) -> &RecordsPerDay {
        &self.sums.days
    }

    pub(crate) fn sync(&mut self) -> Result<(), Error> {
        self.journal.as_mut().map_or(Ok(()), Journal::sync)
    }

    /// Notes the entries in the reserve for which the disk is too full, and with them that the set is
    /// written. `false`: there are none.
    pub(crate) fn hold_unwritten(&mut self) -> Result<bool, Error> {
        if self.unwritten.is_empty() {
            return Ok(false);
        }
        let unwritten = std::mem::take(&mut self.unwritten);
        self.settle()?;
        self.held = HeldIds::add(&self.reserve, &*self.disk, self.snapshot, &unwritten)?;
        self.held_since_turn += unwritten.iter().map(|taken| taken.records).sum::<u64>();
        if self.held_since_turn >= WINDOW {
            // The same number of ids stays known as with generations of the journal.
            self.before = std::mem::take(&mut self.known);
            self.held_since_turn = 0;
            self.exact = None;
        }
        Ok(true)
    }

    /// Writes the ids of the reserve to the journal, as far as there is room. They leave the reserve when
    /// all are written.
    pub(crate) fn flush_reserve(&mut self) -> Result<(), Error> {
        self.settle()?;
        if self.held.is_empty() {
            return Ok(());
        }
        for taken in self.held.lines(&*self.disk, &self.reserve)? {
            if !self.flushed.contains(&taken.entry) {
                if self.held.is_last_line(&taken) {
                    // A power failure may keep a line and lose those before it: all of them are on
                    // the disk before the one that says so.
                    self.sync()?;
                }
                self.write(&taken)?;
                self.flushed.insert(taken.entry);
            }
        }
        self.sync()?;
        self.settle()
    }

    /// Removes from the reserve what the journal has.
    fn settle(&mut self) -> Result<(), Error> {
        if self.held.is_flushed(&self.flushed) {
            self.held = HeldIds::clear(&self.reserve, &*self.disk)?;
            self.flushed.clear();
        }
        Ok(())
    }

    /// Begins a new generation when the time has come. Never in the midst of a snapshot: going on
    /// with it after a crash must find what it began with.
    pub(crate) fn rotate_if_full(&mut self) -> Result<(), Error> {
        if self.ids >= WINDOW
            && let Some(journal) = &mut self.journal
        {
            journal.rotate(&self.sums)?;
            self.ids = 0;
            self.before = std::mem::take(&mut self.known);
            self.exact = None; // It has what is forgotten now.
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::disk::RealDisk;
    use crate::record::Record;
    use crate::time::new_id;

    #[test]
    fn an_id_is_known_for_two_generations_whether_the_book_was_kept_or_read() {
        let dir = tempfile::tempdir().unwrap();
        let data = DataDir::new(dir.path());
        let disk: Arc<dyn Disk> = Arc::new(RealDisk);
        data.make(&*disk).unwrap();
        let records: Vec<_> = (0..3).map(|_| Record::parse("{}").unwrap()).collect();
        let mut kept = EntryJournal::open(&disk, &data, new_id()).unwrap();
        for record in &records {
            let mut taken = ConsolidatedEntry::new(kept.snapshot, "x.jsonl");
            kept.learn(RecordFingerprint::new(record), &mut taken);
            kept.add(taken);
            kept.write_waiting().unwrap();
            kept.ids = WINDOW; // as if it were full
            kept.rotate_if_full().unwrap();
            kept = kept.again(new_id()).unwrap();
        }
        let mut read = EntryJournal::open(&disk, &data, new_id()).unwrap();
        for journal in [&mut kept, &mut read] {
            let nothing = ConsolidatedEntry::new(new_id(), "y.jsonl");
            let mut seen = |record| {
                journal
                    .seen(&data, RecordFingerprint::new(record), &nothing)
                    .unwrap()
            };
            let seen: Vec<_> = records.iter().map(&mut seen).collect();
            assert_eq!(
                seen,
                [RecordMatch::Never, RecordMatch::Never, RecordMatch::Same]
            );
            assert_eq!((journal.sums.records, journal.ids), (3, 0));
        }
        let records: u64 = days(&data, None).unwrap().values().sum();
        assert_eq!(records, 3, "also of the generations that are gone");
    }

    #[test]
    fn an_id_that_only_looks_known_is_not() {
        let dir = tempfile::tempdir().unwrap();
        let data = DataDir::new(dir.path());
        let disk: Arc<dyn Disk> = Arc::new(RealDisk);
        data.make(&*disk).unwrap();
        let [known, new] =
            ["{}", "{}"].map(|text| RecordFingerprint::new(&Record::parse(text).unwrap()));
        let mut journal = EntryJournal::open(&disk, &data, new_id()).unwrap();
        let mut taken = ConsolidatedEntry::new(journal.snapshot, "x.jsonl");
        journal.learn(known, &mut taken);
        journal.known.insert(new.id); // as if its bits were those of others
        let other = RecordFingerprint {
            checksum: !known.checksum,
            ..known
        };
        for _ in ["while its entry is being read", "when it was read"] {
            let mut seen = |stamp| journal.seen(&data, stamp, &taken).unwrap();
            assert_eq!(seen(new), RecordMatch::Never);
            assert_eq!(seen(known), RecordMatch::Same);
            assert_eq!(seen(other), RecordMatch::Other);
            let next = ConsolidatedEntry::new(journal.snapshot, "y.jsonl");
            journal.add(std::mem::replace(&mut taken, next));
            journal.write_waiting().unwrap();
            journal.exact = None;
        }
    }
}
