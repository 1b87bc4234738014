//! Consolidation: a fixed snapshot of entries becomes batches, exactly once.
//!
//! Under the lock of the staging directory:
//!
//! 1. finish the set that a crashed owner had begun, as it is written down; a line that is in a batch
//!    already stays there, whatever became of its entry since;
//! 2. list a bounded snapshot of entries, and write that set down, on the disk;
//! 3. write the batches, note what was taken, fold the totals; the same snapshot gives the same
//!    files, so that doing it again after a crash changes nothing;
//! 4. mark the set as written, on the disk;
//! 5. delete exactly those entries, then the lock.

mod excluded;
mod resumed;
mod written;

use std::collections::HashSet;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use excluded::ExcludedEntries;
use resumed::ResumedBatches;
use uuid::Uuid;
use written::SnapshotProgress;

use crate::backlog::Backlog;
use crate::data_dir::DataDir;
use crate::disk::{Disk, RealDisk};
use crate::entry::{EntryKind, EntryName};
use crate::entry_journal::{self, EntryJournal, HeldIds};
use crate::entry_reader::probe;
use crate::error::Error;
use crate::files;
use crate::line;
use crate::manager::{BatchStore, HeldOutcomes, SpoolManager};
use crate::recover::seal_abandoned;
use crate::reserve::Reserve;
use crate::snapshot::Snapshot;
use crate::staging_lock::{LockError, StagingLock};
use crate::time::new_id;
use crate::unreadable::UnreadableEntries;

/// How consolidation works.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Options {
    /// Which of several machines or pods this is.
    pub pod_name: String,
    /// How many records go into a batch. It is cut earlier if it would exceed 1 MiB.
    pub batch_size: usize,
    /// How many entries are taken at once; the rest is for the next round.
    pub max_entries: usize,
    /// How many bytes of entries are taken at once, but always one entry.
    pub max_bytes: u64,
}

/// How many bytes of entries are taken at once while the disk is full, but always one entry.
const MOST_BYTES_IF_FULL: u64 = 1 << 20;

impl Default for Options {
    fn default() -> Self {
        Self {
            pod_name: "local".to_owned(),
            batch_size: 100,
            max_entries: 1000,
            max_bytes: 32 << 20,
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
    kept: ConsolidatorState,
}

/// State that one snapshot leaves for the next one of the same process.
#[derive(Debug, Default)]
pub(crate) struct ConsolidatorState {
    /// As it was when the last set was done with.
    pub(crate) journal: Option<EntryJournal>,
    pub(crate) backlog: Backlog,
    pub(crate) unreadable: UnreadableEntries,
    /// A file of the totals that could not be read when something was last folded.
    pub(crate) unreadable_totals: Option<Error>,
}

impl ConsolidatorState {
    /// Lists what is staged now, and returns how many entries that are.
    pub(crate) fn list(&mut self, data: &DataDir) -> Result<usize, Error> {
        self.unreadable
            .begin(|path| data.disk.exists(path).unwrap_or(true));
        self.backlog.list(data)
    }

    /// Notes which file of the totals cannot be read now.
    fn note_totals(&mut self, unreadable: Option<Error>) {
        match (&self.unreadable_totals, &unreadable) {
            (None, Some(error)) => {
                tracing::warn!(%error, "totals lack records until the file can be read");
            }
            (Some(error), None) => {
                tracing::info!(path = %error.path().display(), "totals can be read again");
            }
            _ => {}
        }
        self.unreadable_totals = unreadable;
    }

    /// Forgets what may differ from what was written.
    pub(crate) fn forget(&mut self) {
        self.journal = None;
        self.backlog = Backlog::default();
    }
}

impl Consolidator {
    /// Nothing is read or made before the first snapshot.
    pub fn new(data: impl AsRef<Path>) -> Self {
        Self {
            disk: Arc::new(RealDisk),
            data: data.as_ref().to_owned(),
            kept: ConsolidatorState::default(),
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
    kept: &mut ConsolidatorState,
) -> Result<Consolidated, LockError> {
    let spool = SpoolManager::on(Arc::clone(disk), data);
    let data = DataDir::on(Arc::clone(disk), data);
    data.make(&**disk).map_err(LockError::Disk)?;
    let (staging, pod_name) = (&data.staging, &options.pod_name);
    let mut lock = StagingLock::acquire_to_consolidate(Arc::clone(disk), staging, pod_name)?;
    let mut fold = ConsolidationRun {
        disk,
        data: &data,
        spool: &spool,
        kept,
        done: Consolidated::default(),
    };
    fold.finish(&mut lock, true)?;
    fold.flush_reserve().map_err(LockError::Disk)?;
    fold.repair_totals().map_err(LockError::Disk)?;
    let names = fold.snapshot(options).map_err(LockError::Disk)?;
    if !names.is_empty() {
        lock.freeze(names, options.batch_size)?;
        // Batches of a set that cannot be told any more may be there.
        let again = lock.has_lost_snapshot();
        fold.finish(&mut lock, again)?;
    }
    lock.release_only()?;
    Ok(fold.done)
}

struct ConsolidationRun<'a> {
    disk: &'a Arc<dyn Disk>,
    data: &'a DataDir,
    spool: &'a dyn BatchStore,
    kept: &'a mut ConsolidatorState,
    done: Consolidated,
}

impl ConsolidationRun<'_> {
    /// Does what is left to do of the set that is begun, if one is. `again`: another process had begun,
    /// and may have come to any point.
    fn finish(&mut self, lock: &mut StagingLock, again: bool) -> Result<(), LockError> {
        let Some(set) = lock.snapshot().cloned() else {
            return Ok(());
        };
        if !set.is_written {
            let left_out = ExcludedEntries::read(&**self.disk, &self.data.staging);
            let mut snapshot = SnapshotProgress::new(&set, left_out.map_err(LockError::Disk)?);
            let (mut journal, is_read) = self.open_book(set.id).map_err(LockError::Disk)?;
            if again && !self.resume(lock, &set, &journal, &mut snapshot)? {
                return lock.abandon_snapshot();
            }
            self.write(&mut snapshot, &mut journal, &set.entries)
                .and_then(|()| self.write_totals(&mut snapshot, &mut journal, is_read))
                .map_err(LockError::Disk)?;
            if journal.hold_unwritten().map_err(LockError::Disk)? {
                lock.note_written_in_reserve();
            } else {
                lock.mark_written()?;
            }
            journal.rotate_if_full().map_err(LockError::Disk)?;
            self.kept.journal = Some(journal);
        }
        let set = lock.snapshot().into_iter();
        let consumed: HashSet<String> = set.flat_map(Snapshot::consumed).cloned().collect();
        ExcludedEntries::forget(&**self.disk, &self.data.staging, &consumed)
            .map_err(LockError::Disk)?;
        lock.clean_up()?;
        self.done.entries += consumed.len();
        Ok(())
    }

    /// Opens the journal for a set. `true`: it was read. After an error it is not kept: what it knows
    /// may be more than what is written.
    fn open_book(&mut self, set: Uuid) -> Result<(EntryJournal, bool), Error> {
        let kept = (self.kept.journal.take()).and_then(|journal| journal.again(set));
        match kept {
            Some(journal) => Ok((journal, false)),
            None => Ok((EntryJournal::open(self.disk, self.data, set)?, true)),
        }
    }

    /// Writes what the reserve holds to the disk, as far as there is room. The set must be finished:
    /// its id tells what was folded into the totals.
    fn flush_reserve(&mut self) -> Result<(), Error> {
        let held = Reserve::new(&self.data.staging).read(&**self.disk);
        if held.is_ok_and(|held| held.is_empty()) {
            return Ok(());
        }
        let journal = self
            .kept
            .journal
            .take()
            .and_then(|journal| journal.again(new_id()));
        let mut journal = match journal {
            Some(journal) => journal,
            None => EntryJournal::open(self.disk, self.data, new_id())?,
        };
        let flushed = journal.flush_reserve();
        self.kept.journal = Some(journal);
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
        let batches = HeldOutcomes::max_batches_per_set(disk, &reserve)?;
        let batch_size = options.batch_size as u64;
        let mut ids_left = batches.saturating_mul(batch_size).min(ids_left);
        // While the disk is full few batches are made at a time, and the set is read again for more.
        let max_bytes = if is_in_use {
            options.max_bytes.min(MOST_BYTES_IF_FULL)
        } else {
            options.max_bytes
        };
        while let Some(mut name) = self.kept.backlog.pop() {
            if taken.len() == options.max_entries {
                self.kept.backlog.put_back(name);
                break;
            }
            if name.kind == EntryKind::Open {
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
                name.kind = EntryKind::Sealed;
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
                EntryKind::Single => 1,
                EntryKind::Sealed | EntryKind::Open => length / line::SHORTEST,
            };
            let is_too_much = bytes > max_bytes || ids > ids_left;
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
        let file_name =
            |name: &EntryName| name.path_in(Path::new("")).to_string_lossy().into_owned();
        Ok(taken.iter().map(file_name).collect())
    }

    /// Finds what came of a set before a crash, and leaves out the entries that cannot be read.
    /// `false`: nothing came of it, and not all its entries can be read. Then the others need not wait
    /// for those.
    fn resume(
        &mut self,
        lock: &mut StagingLock,
        set: &Snapshot,
        journal: &EntryJournal,
        snapshot: &mut SnapshotProgress,
    ) -> Result<bool, LockError> {
        let reused =
            entry_journal::reused(self.data, set.id, &set.entries).map_err(LockError::Disk)?;
        let resumed = ResumedBatches::read(self.spool, set, &reused).map_err(LockError::Disk)?;
        let resumed = snapshot.resumed.insert(resumed);
        snapshot.unread.extend(set.excluded.iter().cloned());
        let names = set.entries.iter().enumerate();
        let names = names.filter(|(_, name)| !set.excluded.contains(name));
        let mut excluded = Vec::new();
        for (place, file) in names {
            let name = EntryName::parse(file.as_ref());
            let probed = name.map(|name| probe(&**self.disk, &self.data.staging, name));
            let Some(Err(error)) = probed else {
                continue;
            };
            if set.excluded.is_empty() && !journal.has_begun() && resumed.is_empty() {
                return Ok(false);
            }
            match journal.noted(file) {
                // It need not be read any more.
                Some(taken) if resumed.has_all(place, taken) => {}
                None if resumed.has_ids_of(place) => {
                    let lines = resumed.exclude(place);
                    snapshot.left_out.add(file, set.id, lines.into_iter());
                    excluded.push(file.clone());
                    self.kept.unreadable.add(error);
                }
                _ => return Err(LockError::Disk(error)),
            }
            snapshot.unread.insert(file.clone());
        }
        if !excluded.is_empty() {
            let noted = snapshot.left_out.write(&**self.disk, &self.data.staging);
            noted.map_err(LockError::Disk)?;
            lock.exclude(excluded)?;
        }
        Ok(true)
    }
}
