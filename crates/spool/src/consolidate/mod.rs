//! Consolidation: a snapshot of entries becomes batches, exactly once.
//!
//! A run of consolidation owns the lock of the staging directory from its first step to its last,
//! so that no two processes consolidate the same entry.
//!
//! 1. finish the snapshot of a crashed lock owner. A line that is in a batch stays in that batch,
//!    even if its entry has changed since;
//! 2. choose the entries of a new snapshot within limits, write the snapshot and sync it;
//! 3. write the batches, the journal of entries and the totals. The same snapshot gives the same
//!    files, so that a repetition after a crash changes nothing;
//! 4. mark the snapshot as written, and sync that;
//! 5. delete exactly its entries, then release the lock.

mod excluded;
mod resumed;
mod written;

use std::collections::HashSet;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use excluded::ExcludedEntries;
use resumed::EarlierBatches;
use uuid::Uuid;
use written::SnapshotProgress;

use crate::backlog::Backlog;
use crate::data_dir::DataDir;
use crate::disk::{Disk, RealDisk};
use crate::entry::{EntryKind, EntryName};
use crate::entry_journal::{self, EntryJournal, HeldIds};
use crate::entry_reader::probe;
use crate::error::Error;
use crate::fence::{Fence, FencedDisk};
use crate::files;
use crate::line;
use crate::manager::{HeldOutcomes, SpoolManager};
use crate::recover::seal_abandoned;
use crate::reserve::Reserve;
use crate::snapshot::Snapshot;
use crate::staging_lock::{LockError, StagingLock};
use crate::time::new_id;
use crate::totals::Grouping;
use crate::unreadable::UnreadableEntries;

/// Options of consolidation.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Options {
    /// Name of this machine or pod. The lock record shows it to processes that are refused.
    pub pod_name: String,
    /// Number of records in a batch. A batch has fewer if they would exceed 1 MiB.
    pub batch_size: usize,
    /// Maximum number of entries in a snapshot. A longer backlog is consolidated in several
    /// snapshots.
    pub max_entries: usize,
    /// Maximum total length in bytes of the entries in a snapshot. A snapshot of a single entry may
    /// exceed it.
    pub max_bytes: u64,
    /// Fields of records by which totals are grouped, summed and counted. Without any, the totals are
    /// numbers of records.
    pub grouping: Grouping,
}

/// Maximum total length in bytes of the entries in one snapshot while the disk is full. The
/// reserve, space preallocated for a full disk, has room for few batches. Consolidation therefore
/// stops often and reads the whole snapshot again. The limit keeps these repeated reads short.
const MAX_BYTES_IF_FULL: u64 = 1 << 20;

impl Default for Options {
    fn default() -> Self {
        Self {
            pod_name: "local".to_owned(),
            batch_size: 100,
            max_entries: 1000,
            max_bytes: 32 << 20,
            grouping: Grouping::default(),
        }
    }
}

/// Numbers of entries, records and batches of one consolidation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Consolidated {
    /// Number of entries that were read and deleted.
    pub entries: usize,
    /// Number of records of the consolidated entries that are in batches, including batches that
    /// were written before a crash.
    pub records: usize,
    /// Number of batches that this call wrote. Batches that existed from before a crash do not
    /// count.
    pub batches: usize,
    /// Number of records that were skipped, because they had been consolidated before.
    pub repeated: usize,
    /// Number of damaged or missing lines, rejected records and foreign files. Those that exist
    /// were moved to `failed/`.
    pub aside: u64,
    /// Number of entries that cannot be read, or have a newer version. They stay in place.
    pub unreadable: usize,
}

/// Consolidates one snapshot of the entries in a data directory. If [`Consolidated::entries`] is 0,
/// no entry is left that can be consolidated now.
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

/// Consolidates one snapshot after another. Reads the journal and lists the staging directory once
/// for many snapshots.
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
    state: ConsolidatorState,
}

/// State that a process keeps from one snapshot to the next, so that it need not read the entry
/// journal and list the staging directory for each snapshot.
#[derive(Debug, Default)]
pub(crate) struct ConsolidatorState {
    /// Entry journal as the last snapshot left it, so that the next snapshot need not read its
    /// files again. `None` before the first snapshot and after an error.
    pub(crate) journal: Option<EntryJournal>,
    pub(crate) backlog: Backlog,
    pub(crate) unreadable: UnreadableEntries,
    /// Error of a totals file that could not be read when the totals were last written. It is
    /// logged when it begins and when it ends.
    pub(crate) unreadable_totals: Option<Error>,
}

impl ConsolidatorState {
    pub(crate) fn list(&mut self, data: &DataDir) -> Result<usize, Error> {
        self.unreadable
            .begin(|path| data.disk.exists(path).unwrap_or(true));
        self.backlog.list(data)
    }

    /// Stores the error of a file of totals, and logs when the error begins and when it ends.
    fn set_unreadable_totals(&mut self, unreadable: Option<Error>) {
        match (&self.unreadable_totals, &unreadable) {
            (None, Some(error)) => {
                tracing::warn!(%error, "totals of consolidated records lack records until a file of totals can be read");
            }
            (Some(error), None) => {
                tracing::info!(path = %error.path().display(), "file of totals can be read again");
            }
            _ => {}
        }
        self.unreadable_totals = unreadable;
    }

    /// Forgets the journal and the backlog. After an error they may differ from the files.
    pub(crate) fn forget(&mut self) {
        self.journal = None;
        self.backlog = Backlog::default();
    }
}

impl Consolidator {
    /// Creates a consolidator for the data directory `data`. No file is read or created before the
    /// first call of [`Consolidator::next`].
    pub fn new(data: impl AsRef<Path>) -> Self {
        Self {
            disk: Arc::new(RealDisk),
            data: data.as_ref().to_owned(),
            state: ConsolidatorState::default(),
        }
    }

    /// Returns a consolidator that changes nothing after the fence was lost.
    #[must_use]
    pub fn fenced(self, fence: Fence) -> Self {
        Self {
            disk: Arc::new(FencedDisk::new(self.disk, fence)),
            ..self
        }
    }

    /// Consolidates the next snapshot, as [`consolidate`] does.
    pub fn next(&mut self, options: &Options) -> Result<Consolidated, LockError> {
        let done = consolidate_on(&self.disk, &self.data, options, &mut self.state);
        if done.is_err() {
            self.state.forget();
        }
        done
    }
}

pub(crate) fn consolidate_on(
    disk: &Arc<dyn Disk>,
    data: &Path,
    options: &Options,
    state: &mut ConsolidatorState,
) -> Result<Consolidated, LockError> {
    let spool = SpoolManager::on(Arc::clone(disk), data);
    let data = DataDir::on(Arc::clone(disk), data);
    data.make(&**disk).map_err(LockError::Disk)?;
    let (staging, pod_name) = (&data.staging, &options.pod_name);
    let mut lock = StagingLock::acquire_to_consolidate(Arc::clone(disk), staging, pod_name)?;
    let mut run = ConsolidationRun {
        disk,
        data: &data,
        spool: &spool,
        grouping: &options.grouping,
        state,
        done: Consolidated::default(),
    };
    run.finish(&mut lock, true)?;
    run.flush_reserve().map_err(LockError::Disk)?;
    run.repair_totals().map_err(LockError::Disk)?;
    let entries = run.choose_entries(options).map_err(LockError::Disk)?;
    if !entries.is_empty() {
        lock.freeze(entries, options.batch_size)?;
        // A damaged lock record does not show which entries its snapshot had, but some of its
        // batches may exist. The new snapshot must find and reuse these batches, otherwise their
        // records would be delivered twice.
        let is_resumed = lock.has_lost_snapshot();
        run.finish(&mut lock, is_resumed)?;
    }
    lock.release_only()?;
    Ok(run.done)
}

/// State of one consolidation while it owns the lock of the staging directory.
struct ConsolidationRun<'a> {
    disk: &'a Arc<dyn Disk>,
    data: &'a DataDir,
    spool: &'a SpoolManager,
    grouping: &'a Grouping,
    state: &'a mut ConsolidatorState,
    done: Consolidated,
}

/// Maximum size of a new snapshot. It is smaller while the disk is full.
struct SnapshotLimits {
    bytes: u64,
    /// Maximum number of record ids in the snapshot. If the disk becomes full, the ids of the
    /// records and the names of the batches must fit into the reserve (space preallocated for a
    /// full disk).
    ids: u64,
    /// True if the reserve (space preallocated for a full disk) already holds ids of consolidated
    /// records, because the disk is full. The snapshot is then kept small, and an entry whose ids
    /// do not fit into the reserve is an error.
    is_reserve_in_use: bool,
}

impl SnapshotLimits {
    fn new(disk: &dyn Disk, data: &DataDir, options: &Options) -> Result<Self, Error> {
        let reserve = Reserve::new(&data.staging);
        let (ids, is_reserve_in_use) = HeldIds::room(disk, &reserve)?;
        let batches = HeldOutcomes::max_batches_per_snapshot(disk, &reserve)?;
        // A full disk makes large snapshots expensive, so a smaller limit applies: see
        // [`MAX_BYTES_IF_FULL`].
        let bytes = if is_reserve_in_use {
            options.max_bytes.min(MAX_BYTES_IF_FULL)
        } else {
            options.max_bytes
        };
        Ok(Self {
            bytes,
            ids: batches.saturating_mul(options.batch_size as u64).min(ids),
            is_reserve_in_use,
        })
    }
}

impl ConsolidationRun<'_> {
    /// Finishes the snapshot that is begun, if there is one. `is_resumed`: another process began
    /// it, and may have ended at any point.
    fn finish(&mut self, lock: &mut StagingLock, is_resumed: bool) -> Result<(), LockError> {
        let Some(snapshot) = lock.snapshot().cloned() else {
            return Ok(());
        };
        if !snapshot.is_written {
            let excluded = ExcludedEntries::read(&**self.disk, &self.data.staging);
            let excluded = excluded.map_err(LockError::Disk)?;
            let mut progress = SnapshotProgress::new(&snapshot, excluded, self.grouping);
            let (mut journal, is_opened) =
                self.open_journal(snapshot.id).map_err(LockError::Disk)?;
            if is_resumed && !self.resume(lock, &snapshot, &journal, &mut progress)? {
                return lock.abandon_snapshot();
            }
            self.write(&mut progress, &mut journal, &snapshot.entries)
                .and_then(|()| self.write_totals(&mut progress, &mut journal, is_opened))
                .map_err(LockError::Disk)?;
            if journal
                .store_unwritten_in_reserve()
                .map_err(LockError::Disk)?
            {
                lock.note_written_in_reserve();
            } else {
                lock.mark_written()?;
            }
            journal.rotate_if_full().map_err(LockError::Disk)?;
            self.state.journal = Some(journal);
        }
        let snapshot = lock.snapshot().into_iter();
        let consumed: HashSet<String> = snapshot.flat_map(Snapshot::consumed).cloned().collect();
        ExcludedEntries::forget(&**self.disk, &self.data.staging, &consumed)
            .map_err(LockError::Disk)?;
        lock.clean_up()?;
        self.done.entries += consumed.len();
        Ok(())
    }

    /// Returns the journal for consolidating a snapshot, and `true` if it was read from its files
    /// now. The caller puts it back into the state only when the snapshot is finished: after an
    /// error the journal in memory may have events that the files lack.
    fn open_journal(&mut self, snapshot: Uuid) -> Result<(EntryJournal, bool), Error> {
        let journal = self.state.journal.take();
        match journal.and_then(|journal| journal.reuse_for(snapshot)) {
            Some(journal) => Ok((journal, false)),
            None => Ok((EntryJournal::open(self.disk, self.data, snapshot)?, true)),
        }
    }

    /// Moves record ids, counts and files from the reserve (space preallocated for a full disk) to
    /// the journal and the disk, as far as the disk has room. Must be called only while no snapshot
    /// is unfinished: the journal events that are written here have an id of their own and not that
    /// of their snapshot. Readers could not leave out the records of an unfinished snapshot by its
    /// id, and would expect them in the totals.
    fn flush_reserve(&mut self) -> Result<(), Error> {
        let contents = Reserve::new(&self.data.staging).read(&**self.disk);
        if contents.is_ok_and(|contents| contents.is_empty()) {
            return Ok(());
        }
        let (mut journal, _) = self.open_journal(new_id())?;
        let flushed = journal.flush_reserve();
        self.state.journal = Some(journal);
        let dirs = [&*self.data.staging, &*self.data.usage];
        match flushed.and_then(|()| files::flush(&**self.disk, &dirs)) {
            Err(error) if error.is_full() => Ok(()),
            flushed => flushed,
        }
    }

    /// Chooses the oldest entries that no producer writes any more, within the limits. Returns
    /// their file names.
    fn choose_entries(&mut self, options: &Options) -> Result<Vec<String>, Error> {
        if self.state.backlog.is_empty() {
            self.state.list(self.data)?;
        }
        let mut limits = SnapshotLimits::new(&**self.disk, self.data, options)?;
        let (mut chosen, mut bytes, mut full) = (Vec::new(), 0_u64, None);
        while let Some(listed) = self.state.backlog.pop() {
            if chosen.len() == options.max_entries {
                self.state.backlog.put_back(listed);
                break;
            }
            let Some(name) = self.seal_if_open(listed, &mut full) else {
                continue;
            };
            // A listing may have both names of an entry that is renamed meanwhile. Choose the entry
            // once, otherwise the snapshot would have it twice.
            if chosen.last() == Some(&name) {
                continue;
            }
            let Some(length) = self.probe(name) else {
                continue;
            };
            bytes = bytes.saturating_add(length);
            let ids = match name.kind {
                EntryKind::Single => 1,
                EntryKind::Sealed | EntryKind::Open => length / line::SHORTEST,
            };
            let is_too_much = bytes > limits.bytes || ids > limits.ids;
            if is_too_much && !chosen.is_empty() {
                self.state.backlog.put_back(name);
                break;
            }
            if ids > limits.ids && limits.is_reserve_in_use {
                self.state.backlog.put_back(name);
                let full = io::Error::from(io::ErrorKind::StorageFull);
                let path = name.path_in(&self.data.staging);
                return Err(Error::new("store the record ids of the entry", &path, full));
            }
            limits.ids = limits.ids.saturating_sub(ids);
            chosen.push(name);
        }
        self.done.unreadable = self.state.unreadable.count();
        if let Some(full) = full.filter(|_| chosen.is_empty()) {
            return Err(full);
        }
        let file_name =
            |name: &EntryName| name.path_in(Path::new("")).to_string_lossy().into_owned();
        Ok(chosen.iter().map(file_name).collect())
    }

    /// Seals an open entry whose writer has ended. Returns the entry's name, or `None` if the entry
    /// cannot be consolidated now. Such an entry must not delay the others. `full` gets the first
    /// error of a full disk.
    fn seal_if_open(&mut self, name: EntryName, full: &mut Option<Error>) -> Option<EntryName> {
        if name.kind != EntryKind::Open {
            return Some(name);
        }
        match seal_abandoned(&**self.disk, self.data, name) {
            Ok(is_sealed) => {
                let open = name.path_in(&self.data.staging);
                self.state.unreadable.remove(&open);
                let kind = EntryKind::Sealed;
                is_sealed.then_some(EntryName { kind, ..name })
            }
            Err(error) if error.is_full() => {
                full.get_or_insert(error);
                None
            }
            Err(error) => {
                self.state.unreadable.add(error);
                None
            }
        }
    }

    /// Returns the length of an entry; `None` if it was removed or cannot be read. An unreadable
    /// entry must not delay the others.
    fn probe(&mut self, name: EntryName) -> Option<u64> {
        match probe(&**self.disk, &self.data.staging, name) {
            Ok(Some(length)) => {
                let path = name.path_in(&self.data.staging);
                self.state.unreadable.remove(&path);
                Some(length)
            }
            Ok(None) => None,
            Err(error) => {
                self.state.unreadable.add(error);
                None
            }
        }
    }

    /// Finds the batches that a crashed process wrote of a snapshot, and excludes the entries that
    /// cannot be read. Returns `false` if no batch was written and an entry cannot be read: then a
    /// new snapshot without that entry can be chosen.
    fn resume(
        &mut self,
        lock: &mut StagingLock,
        snapshot: &Snapshot,
        journal: &EntryJournal,
        progress: &mut SnapshotProgress,
    ) -> Result<bool, LockError> {
        let reused = entry_journal::reused(self.data, snapshot.id, &snapshot.entries)
            .map_err(LockError::Disk)?;
        let earlier =
            EarlierBatches::read(self.spool, snapshot, &reused).map_err(LockError::Disk)?;
        let earlier = progress.earlier.insert(earlier);
        progress.unread.extend(snapshot.excluded.iter().cloned());
        let names = snapshot.entries.iter().enumerate();
        let names = names.filter(|(_, name)| !snapshot.excluded.contains(name));
        let mut excluded = Vec::new();
        for (place, file) in names {
            let name = EntryName::parse(file.as_ref());
            let probed = name.map(|name| probe(&**self.disk, &self.data.staging, name));
            let Some(Err(error)) = probed else {
                continue;
            };
            let has_begun = journal.has_entries_of_snapshot() || !earlier.is_empty();
            if snapshot.excluded.is_empty() && !has_begun {
                return Ok(false);
            }
            match journal.already_journaled(file) {
                // All records of the entry are in batches already, so the entry that cannot be read
                // is not needed.
                Some(consolidated) if earlier.has_all(place, consolidated) => {}
                None if earlier.has_ids_of(place) => {
                    let lines = earlier.exclude(place);
                    progress.excluded.add(file, snapshot.id, lines.into_iter());
                    excluded.push(file.clone());
                    self.state.unreadable.add(error);
                }
                _ => return Err(LockError::Disk(error)),
            }
            progress.unread.insert(file.clone());
        }
        if !excluded.is_empty() {
            let written = progress.excluded.write(&**self.disk, &self.data.staging);
            written.map_err(LockError::Disk)?;
            lock.exclude(excluded)?;
        }
        Ok(true)
    }
}
