//! Consolidation: a fixed snapshot of entries becomes batches, exactly once.
//!
//! Under the lock of the staging directory:
//!
//! 1. finish the set that a crashed owner had begun, as it is written down;
//! 2. list a bounded snapshot of entries, and write that set down, on the disk;
//! 3. write the batches, fold the totals, note what was taken; the same snapshot gives the same
//!    files, so that doing it again after a crash changes nothing;
//! 4. mark the set as written, on the disk;
//! 5. delete exactly those entries, then the lock.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use uuid::Uuid;

use crate::backlog::Backlog;
use crate::batch::{self, Batch, Part};
use crate::data_dir::DataDir;
use crate::disk::{Disk, RealDisk};
use crate::entry::{Kind, Name};
use crate::entry_reader::probe;
use crate::entry_records::EntryRecords;
use crate::error::Error;
use crate::files;
use crate::line;
use crate::manager::{BatchStore, HeldOutcomes, SpoolManager};
use crate::record::Record;
use crate::recover::seal_abandoned;
use crate::reserve::Reserve;
use crate::set::Set;
use crate::staging_lock::{LockError, StagingLock};
use crate::stamp::Stamp;
use crate::taken::{HeldIds, Seen, Taken, TakenBook};
use crate::time::new_id;
use crate::totals::{self, Totals, sum};
use crate::unreadable::Unreadable;

/// How consolidation works.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Options {
    /// Which of several machines or pods this is.
    pub pod_name: String,
    /// How many records go into a batch. It is cut earlier if it would exceed 1 MiB.
    pub batch_size: usize,
    /// How many entries are taken at once; the rest is for the next round.
    pub most_entries: usize,
    /// How many bytes of entries are taken at once, but always one entry.
    pub most_bytes: u64,
}

/// How many bytes of entries are taken at once while the disk is full, but always one entry.
const MOST_BYTES_IF_FULL: u64 = 1 << 20;

impl Default for Options {
    fn default() -> Self {
        Self {
            pod_name: "local".to_owned(),
            batch_size: 100,
            most_entries: 1000,
            most_bytes: 32 << 20,
        }
    }
}

/// What a consolidation did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Consolidated {
    /// Entries that were read and deleted.
    pub entries: usize,
    /// Records that went into batches.
    pub records: usize,
    /// Batches that were written now; one that was there from before a crash does not count.
    pub batches: usize,
    /// Records that had been taken before; they are the same record.
    pub repeated: usize,
    /// Lines that were set aside, and files that are none of ours.
    pub aside: u64,
    /// Entries that cannot be read, or are of a newer version. They were left where they are.
    pub unreadable: usize,
}

/// Folds what is staged under a data directory into batches, as much of it as is done at once:
/// nothing is left when no entry was taken.
///
/// ```
/// use spool::{Durability, Options, Record, Staging, consolidate};
///
/// let data = tempfile::tempdir()?;
/// let staging = Staging::open(data.path().join("_staging"))?;
/// staging.stage(&Record::parse(r#"{"tokens":42}"#)?, Durability::Power)?;
/// staging.close()?;
///
/// let done = consolidate(data.path(), &Options::default())?;
/// assert_eq!((done.entries, done.records, done.batches), (1, 1, 1));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn consolidate(data: &Path, options: &Options) -> Result<Consolidated, LockError> {
    Consolidator::new(data).next(options)
}

/// Consolidates one snapshot after another. The journal is read, and the staging directory is
/// listed, once for many of them.
///
/// ```
/// use spool::{Consolidator, Options};
///
/// let data = tempfile::tempdir()?;
/// let mut consolidator = Consolidator::new(data.path());
/// while consolidator.next(&Options::default())?.entries > 0 {}
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Consolidator {
    disk: Arc<dyn Disk>,
    data: PathBuf,
    kept: Kept,
}

/// State that one snapshot leaves for the next one of the same process.
#[derive(Debug, Default)]
pub(crate) struct Kept {
    /// As it was when the last set was done with.
    pub(crate) book: Option<TakenBook>,
    pub(crate) backlog: Backlog,
    pub(crate) unreadable: Unreadable,
}

impl Kept {
    /// Lists what is staged now, and returns how many entries that are.
    pub(crate) fn list(&mut self, data: &DataDir) -> Result<usize, Error> {
        self.unreadable
            .begin(|path| data.disk.exists(path).unwrap_or(true));
        self.backlog.list(data)
    }

    /// Forgets what may differ from what was written.
    pub(crate) fn forget(&mut self) {
        self.book = None;
        self.backlog = Backlog::default();
    }
}

impl Consolidator {
    /// Nothing is read or made before the first snapshot.
    pub fn new(data: impl AsRef<Path>) -> Self {
        Self {
            disk: Arc::new(RealDisk),
            data: data.as_ref().to_owned(),
            kept: Kept::default(),
        }
    }

    /// Consolidates the next snapshot, as [`consolidate`] does.
    pub fn next(&mut self, options: &Options) -> Result<Consolidated, LockError> {
        let done = consolidate_on(&self.disk, &self.data, options, &mut self.kept);
        if done.is_err() {
            self.kept.forget();
        }
        done
    }
}

pub(crate) fn consolidate_on(
    disk: &Arc<dyn Disk>,
    data: &Path,
    options: &Options,
    kept: &mut Kept,
) -> Result<Consolidated, LockError> {
    let spool = SpoolManager::on(Arc::clone(disk), data);
    let data = DataDir::on(Arc::clone(disk), data);
    data.make(&**disk).map_err(LockError::Disk)?;
    let (staging, pod_name) = (&data.staging, &options.pod_name);
    let mut lock = StagingLock::acquire_to_consolidate(Arc::clone(disk), staging, pod_name)?;
    let mut fold = Fold {
        disk,
        data: &data,
        spool: &spool,
        kept,
        done: Consolidated::default(),
    };
    fold.finish(&mut lock, true)?;
    fold.flush_reserve().map_err(LockError::Disk)?;
    let names = fold.snapshot(options).map_err(LockError::Disk)?;
    if !names.is_empty() {
        lock.freeze(names, options.batch_size)?;
        fold.finish(&mut lock, false)?;
    }
    lock.release_only()?;
    Ok(fold.done)
}

struct Fold<'a> {
    disk: &'a Arc<dyn Disk>,
    data: &'a DataDir,
    spool: &'a dyn BatchStore,
    kept: &'a mut Kept,
    done: Consolidated,
}

impl Fold<'_> {
    /// Does what is left to do of the set that is begun, if one is. `again`: somebody had begun, and
    /// may have come to any point.
    fn finish(&mut self, lock: &mut StagingLock, again: bool) -> Result<(), LockError> {
        let Some(set) = lock.set().cloned() else {
            return Ok(());
        };
        if again && !set.is_written && self.is_let_go(&set).map_err(LockError::Disk)? {
            return lock.let_set_go();
        }
        if !set.is_written {
            let mut snapshot = Snapshot {
                id: set.id,
                size: set.batch_size.max(1),
                again,
                parts: Vec::new(),
                records: Vec::new(),
                bytes: 0,
                totals: Totals::new(set.id),
            };
            let mut book = self
                .write(&mut snapshot, &set.entries)
                .map_err(LockError::Disk)?;
            if book.hold_unwritten().map_err(LockError::Disk)? {
                lock.is_written_in_reserve();
            } else {
                lock.mark_written()?;
            }
            book.turn_if_full().map_err(LockError::Disk)?;
            self.kept.book = Some(book);
        }
        lock.clean_up()?;
        self.done.entries += set.entries.len();
        Ok(())
    }

    /// Writes what the reserve holds to the disk, as far as there is room. The set must be finished:
    /// its id tells what was folded into the totals.
    fn flush_reserve(&mut self) -> Result<(), Error> {
        let held = Reserve::new(&self.data.staging).read(&**self.disk);
        if held.is_ok_and(|held| held.is_empty()) {
            return Ok(());
        }
        let book = self.kept.book.take().and_then(|book| book.again(new_id()));
        let mut book = match book {
            Some(book) => book,
            None => TakenBook::open(self.disk, self.data, new_id())?,
        };
        let flushed = book.flush_reserve();
        self.kept.book = Some(book);
        let dirs = [&*self.data.staging, &*self.data.usage];
        match flushed.and_then(|()| files::flush(&**self.disk, &dirs)) {
            Err(error) if error.is_full() => Ok(()),
            flushed => flushed,
        }
    }

    /// The oldest entries that nobody writes any more, by name.
    fn snapshot(&mut self, options: &Options) -> Result<Vec<String>, Error> {
        if self.kept.backlog.is_empty() {
            self.kept.list(self.data)?;
        }
        let (mut taken, mut bytes, mut full) = (Vec::new(), 0, None);
        let staging = &self.data.staging;
        // Should the disk be full, their ids and batches must fit into the reserve.
        let (disk, reserve) = (&**self.disk, Reserve::new(staging));
        let (ids_left, is_in_use) = HeldIds::room(disk, &reserve)?;
        let batches = HeldOutcomes::most_of_set(disk, &reserve)?;
        let batch_size = options.batch_size as u64;
        let mut ids_left = batches.saturating_mul(batch_size).min(ids_left);
        // While the disk is full few batches are made at a time, and the set is read again for more.
        let most_bytes = if is_in_use {
            options.most_bytes.min(MOST_BYTES_IF_FULL)
        } else {
            options.most_bytes
        };
        while let Some(mut name) = self.kept.backlog.pop() {
            if taken.len() == options.most_entries {
                self.kept.backlog.put_back(name);
                break;
            }
            if name.kind == Kind::Open {
                let open = name.path_in(staging);
                match seal_abandoned(&**self.disk, self.data, name) {
                    Ok(is_sealed) => {
                        self.kept.unreadable.remove(&open);
                        if !is_sealed {
                            continue;
                        }
                    }
                    // It needs a name or a block that is not there.
                    Err(error) if error.is_full() => {
                        full.get_or_insert(error);
                        continue;
                    }
                    // It must not hold up the others.
                    Err(error) => {
                        self.kept.unreadable.add(error);
                        continue;
                    }
                }
                name.kind = Kind::Sealed;
            }
            // A rename during the listing may show an entry under both of its names.
            if taken.last() == Some(&name) {
                continue;
            }
            let length = match probe(&**self.disk, staging, name) {
                Ok(Some(length)) => length,
                Ok(None) => continue,
                // It must not hold up the others.
                Err(error) => {
                    self.kept.unreadable.add(error);
                    continue;
                }
            };
            self.kept.unreadable.remove(&name.path_in(staging));
            bytes = length.saturating_add(bytes);
            let ids = match name.kind {
                Kind::Single => 1,
                Kind::Sealed | Kind::Open => length / line::SHORTEST,
            };
            let is_too_much = bytes > most_bytes || ids > ids_left;
            if is_too_much && !taken.is_empty() {
                self.kept.backlog.put_back(name);
                break;
            }
            if ids > ids_left && is_in_use {
                self.kept.backlog.put_back(name);
                let full = io::Error::from(io::ErrorKind::StorageFull);
                return Err(Error::new(
                    "remember the ids of",
                    &name.path_in(staging),
                    full,
                ));
            }
            ids_left = ids_left.saturating_sub(ids);
            taken.push(name);
        }
        self.done.unreadable = self.kept.unreadable.count();
        if let Some(full) = full.filter(|_| taken.is_empty()) {
            return Err(full);
        }
        let file_name = |name: &Name| name.path_in(Path::new("")).to_string_lossy().into_owned();
        Ok(taken.iter().map(file_name).collect())
    }

    /// True if a set that was begun cannot be finished now, since one of its entries cannot be read,
    /// and nothing came of it yet: then the others need not wait for that entry.
    fn is_let_go(&mut self, set: &Set) -> Result<bool, Error> {
        let names = set.entries.iter().map(|name| Name::parse(name.as_ref()));
        let mut unreadable = names
            .flatten()
            .filter_map(|name| probe(&**self.disk, &self.data.staging, name).err());
        let Some(error) = unreadable.next() else {
            return Ok(false);
        };
        let book = TakenBook::open(self.disk, self.data, set.id)?;
        if book.has_begun() || self.spool.has_any_of(&set.entries)? {
            return Err(error);
        }
        Ok(true)
    }

    /// Writes everything that comes of a set of entries, each unless it is there already.
    fn write(&mut self, snapshot: &mut Snapshot, names: &[String]) -> Result<TakenBook, Error> {
        // After an error it is not put back: what it knows may be more than what is written.
        let kept = (self.kept.book.take()).and_then(|book| book.again(snapshot.id));
        let is_read = kept.is_none();
        let mut book = match kept {
            Some(book) => book,
            None => TakenBook::open(self.disk, self.data, snapshot.id)?,
        };
        for name in names {
            let opened = EntryRecords::open(&**self.disk, self.data, name)?;
            // Missing ones are no error.
            if let Some(reader) = opened {
                let taken = self.write_entry(snapshot, &mut book, reader, name)?;
                book.add(taken)?;
            }
        }
        self.write_batch(snapshot)?;
        self.spool.flush()?;
        std::mem::take(&mut snapshot.totals).fold(&**self.disk, self.data, snapshot.id)?;
        totals::repair(&**self.disk, self.data, book.days(), snapshot.id, is_read)?;
        book.sync()?;
        Ok(book)
    }

    fn write_entry(
        &mut self,
        snapshot: &mut Snapshot,
        book: &mut TakenBook,
        mut reader: EntryRecords<'_>,
        name: &str,
    ) -> Result<Taken, Error> {
        let mut taken = Taken::new(snapshot.id, name);
        while let Some((number, record)) = reader.next()? {
            let stamp = Stamp::of(&record);
            match book.seen(self.data, stamp, &taken)? {
                Seen::Never => {}
                Seen::Same => {
                    self.done.repeated += 1;
                    taken.repeated.push(number);
                    continue;
                }
                Seen::Other => {
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
            if !snapshot.has_room_for(&record) {
                self.write_batch(snapshot)?;
            }
            book.learn(stamp, &mut taken);
            snapshot.add(name, number, record);
            if snapshot.records.len() == snapshot.size {
                self.write_batch(snapshot)?;
            }
        }
        (taken.lines, taken.aside) = reader.account()?;
        let aside = taken.lines_aside();
        // One that is no entry at all has no lines.
        let is_foreign = taken.lines == 0;
        self.done.aside += aside.max(u64::from(is_foreign));
        Ok(taken)
    }

    fn write_batch(&mut self, snapshot: &mut Snapshot) -> Result<(), Error> {
        let Some(batch) = snapshot.cut() else {
            return Ok(());
        };
        self.done.records += batch.records().len();
        if self.spool.put(&batch, snapshot.again)? {
            self.done.batches += 1;
        }
        Ok(())
    }
}

/// A set of entries on its way into batches.
struct Snapshot {
    id: Uuid,
    /// How many records go into a batch.
    size: usize,
    again: bool,
    /// The batch that is being filled.
    parts: Vec<Part>,
    records: Vec<Record>,
    bytes: usize,
    totals: Totals,
}

impl Snapshot {
    fn has_room_for(&self, record: &Record) -> bool {
        self.records.is_empty() || self.bytes + record.json().len() <= batch::MOST_BYTES
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
