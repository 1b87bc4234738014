//! Staging: records are on the disk before they are acknowledged, and many producers share one
//! sync.

mod commit;
mod open_entry;
mod rescue;
#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use crate::disk::{Disk, RealDisk};
use crate::error::Error;
use crate::line::PreparedLine;
use crate::record::Record;
use crate::reserve::{self, Reserve};
use commit::CommitGroup;
use open_entry::OpenEntry;
use rescue::{RETRY_AFTER, Rescue};

/// Limits at which an entry is sealed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    pub(crate) records: u64,
    pub(crate) bytes: u64,
    /// Maximum time since the first record of an open entry. An older entry is sealed, so that its
    /// records are consolidated.
    pub(crate) age: Duration,
    /// Length in bytes of the reserve file to create, which keeps space for a full disk; 0 for no
    /// reserve.
    pub(crate) reserve: usize,
}

impl Limits {
    /// Returns how many of these records fit into an entry, at least one.
    fn fit(&self, records: &[Record]) -> usize {
        let mut bytes = 0;
        let max_records = usize::try_from(self.records).unwrap_or(usize::MAX);
        let fitting = records.iter().take(max_records).take_while(|record| {
            bytes += record.json().len() as u64;
            bytes <= self.bytes
        });
        fitting.count().max(1)
    }
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            records: 64 * 1024,
            bytes: 16 << 20,
            age: Duration::from_secs(1),
            reserve: reserve::BYTES,
        }
    }
}

/// Event that a staged record survives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Durability {
    /// A power failure: the data and the directory entry are on the disk when `stage` returns.
    Power,
    /// The end of this process, also by `kill -9`: the kernel has the record when `stage` returns,
    /// and the disk has it some milliseconds later.
    Process,
}

/// Minimum time between two attempts to create the reserve, space that is preallocated for a full
/// disk.
const RESERVE_PAUSE: Duration = Duration::from_millis(if cfg!(test) { 1 } else { 1000 });

/// Maximum number of bytes of records that are acknowledged and not yet synced. Above it, staging
/// without a sync fails, which bounds memory.
const MAX_UNSYNCED: usize = 64 << 20;

/// Maximum time until a record that was staged with [`Durability::Process`] is synced.
const SYNC_WITHIN: Duration = Duration::from_millis(50);

/// Writer of a staging directory. Any number of threads may stage records at once.
///
/// ```
/// use spool::{Durability, Record, Staging};
///
/// let dir = tempfile::tempdir()?;
/// let staging = Staging::open(dir.path())?;
/// let record = Record::parse(r#"{"customer":"acme","tokens":42}"#)?;
/// staging.stage(&record, Durability::Power)?; // survives a power failure from here on
/// staging.close()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Staging {
    shared: Arc<Shared>,
    keeper: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct Shared {
    disk: Arc<dyn Disk>,
    dir: PathBuf,
    limits: Limits,
    reserve: Reserve,
    state: Mutex<StagingState>,
    /// Held while a thread seals entries, or writes records again that a failed sync may have lost,
    /// so that only one thread does this at a time.
    background: Mutex<()>,
    /// Wakes the keeper, the background thread that syncs and seals entries.
    keeper: Condvar,
}

/// An entry to which no more records are added, and which the keeper (the background thread) has
/// yet to seal.
#[derive(Debug)]
struct RetiredEntry {
    entry: OpenEntry,
    /// Commit group of the producers whose records in the entry are not synced yet. Sealing syncs
    /// the entry, and wakes these producers with the result.
    commit: Arc<CommitGroup>,
    /// Earliest time of the next attempt to seal the entry, after one has failed.
    not_before: Option<Instant>,
}

#[derive(Debug, Default)]
struct StagingState {
    entry: Option<OpenEntry>,
    /// Producers that wait for the next sync.
    next: Arc<CommitGroup>,
    /// Producers that wait for the running sync.
    running: Option<Arc<CommitGroup>>,
    /// Time since which the kernel has acknowledged records that are not synced. The keeper, a
    /// background thread, syncs them [`SYNC_WITHIN`] later at most.
    unsynced: Option<Instant>,
    /// Entries to which no more records are added. The keeper, a background thread, seals them: a
    /// sync may take long, and producers must not wait for it.
    retired: VecDeque<RetiredEntry>,
    rescue: Rescue,
    /// Error because of which acknowledged records may not be on the disk, or entries are not
    /// sealed.
    trouble: Option<Error>,
    /// Time of the last failed attempt to create the reserve, space that is preallocated for a full
    /// disk. The next attempt waits for [`RESERVE_PAUSE`].
    reserve_failed_at: Option<Instant>,
    is_closed: bool,
}

impl Staging {
    /// Opens a staging directory. Creates the directory if it does not exist.
    pub fn open(dir: impl AsRef<Path>) -> Result<Self, Error> {
        Self::open_on(Arc::new(RealDisk), dir.as_ref(), Limits::default())
    }

    pub(crate) fn open_on(disk: Arc<dyn Disk>, dir: &Path, limits: Limits) -> Result<Self, Error> {
        let mut staging = Self::open_without_keeper(disk, dir, limits)?;
        staging.start_keeper()?;
        Ok(staging)
    }

    pub(crate) fn open_without_keeper(
        disk: Arc<dyn Disk>,
        dir: &Path,
        limits: Limits,
    ) -> Result<Self, Error> {
        let failed = |error| Error::new("make", dir, error);
        disk.make_dir(dir).map_err(failed)?;
        let reserve = Reserve::new(dir);
        if limits.reserve > 0
            && let Err(error) = reserve.create(&*disk, limits.reserve)
        {
            // Opening does not fail if the reserve for a full disk is missing. Staging a record
            // creates the reserve once the disk has space, and fails until then.
            tracing::warn!(%error, "no reserve for a full disk: staging fails until the reserve can be created");
        }
        let shared = Arc::new(Shared {
            disk,
            dir: dir.to_owned(),
            limits,
            reserve,
            state: Mutex::default(),
            background: Mutex::default(),
            keeper: Condvar::new(),
        });
        Ok(Self {
            shared,
            keeper: None,
        })
    }

    /// Starts the keeper, the background thread that syncs and seals entries.
    fn start_keeper(&mut self) -> Result<(), Error> {
        let shared = Arc::clone(&self.shared);
        let keeper = thread::Builder::new()
            .name("spool-keeper".to_owned())
            .spawn(move || shared.run_keeper())
            .map_err(|error| Error::new("start a thread for", &self.shared.dir, error))?;
        self.keeper = Some(keeper);
        Ok(())
    }

    /// Ends without sealing an entry, like a process that is killed.
    #[cfg(all(test, target_os = "linux"))]
    pub(crate) fn abandon(self) {
        self.shared.lock().is_closed = true;
    }

    /// Runs the tasks of the keeper, the background thread, that are due at `now`. For tests that
    /// do not start this thread.
    #[cfg(test)]
    pub(crate) fn run_due_tasks(&self, now: Instant) {
        self.shared.run_due_tasks(now);
    }

    /// Stages a record. When this returns, the record has the requested durability.
    ///
    /// After an error the record may or may not be staged. Stage the same record again: its id
    /// prevents double counting.
    pub fn stage(&self, record: &Record, durability: Durability) -> Result<(), Error> {
        self.stage_all(std::slice::from_ref(record), durability)
    }

    /// Stages many records with one sync. When this returns, all of them have the requested
    /// durability.
    ///
    /// After an error any of the records may or may not be staged. Stage all of them again: their
    /// ids prevent double counting.
    ///
    /// ```
    /// use spool::{Durability, Record, Staging};
    ///
    /// let dir = tempfile::tempdir()?;
    /// let staging = Staging::open(dir.path())?;
    /// let records: Result<Vec<_>, _> = [r#"{"tokens":42}"#, r#"{"tokens":7}"#]
    ///     .into_iter()
    ///     .map(Record::parse)
    ///     .collect();
    /// staging.stage_all(&records?, Durability::Power)?; // one sync
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn stage_all(&self, records: &[Record], durability: Durability) -> Result<(), Error> {
        // Records that exceed one entry go into several, so that memory is bounded.
        let mut rest = records;
        while !rest.is_empty() {
            let (now, later) = rest.split_at(self.shared.limits.fit(rest));
            match durability {
                Durability::Power => self.shared.stage_for_power(now)?,
                Durability::Process => self.shared.stage_for_process(now)?,
            }
            rest = later;
        }
        Ok(())
    }

    /// Checks that records can be staged now, by creating an entry if none is open.
    ///
    /// ```
    /// use spool::Staging;
    ///
    /// let dir = tempfile::tempdir()?;
    /// let staging = Staging::open(dir.path())?;
    /// staging.check()?; // the disk has space
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn check(&self) -> Result<(), Error> {
        match self.trouble() {
            Some(error) => Err(error),
            None => self.shared.stage_for_process(&[]),
        }
    }

    /// Returns the error because of which acknowledged records may not survive a power failure: a
    /// sync after [`Durability::Process`] has failed, or an entry cannot be sealed. The records are
    /// written again to a new file, every second until that succeeds. Then this is `None` again.
    ///
    /// ```
    /// use spool::Staging;
    ///
    /// let dir = tempfile::tempdir()?;
    /// let staging = Staging::open(dir.path())?;
    /// assert!(staging.trouble().is_none());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn trouble(&self) -> Option<Error> {
        self.shared.lock().trouble.clone()
    }

    /// Seals the open entry, so that it can be consolidated at once.
    pub fn seal(&self) -> Result<(), Error> {
        self.shared.seal_all()
    }

    /// Seals the open entry, so that its records can be consolidated at once, and ends the
    /// background thread that syncs and seals entries. Dropping the value does the same, but logs
    /// an error instead of returning it.
    pub fn close(mut self) -> Result<(), Error> {
        self.end()
    }

    fn end(&mut self) -> Result<(), Error> {
        if std::mem::replace(&mut self.shared.lock().is_closed, true) {
            return Ok(());
        }
        if let Some(keeper) = self.keeper.take() {
            self.shared.keeper.notify_all();
            let _ = keeper.join();
        }
        self.seal()
    }
}

impl Drop for Staging {
    fn drop(&mut self) {
        if let Err(error) = self.end() {
            tracing::warn!(%error, "staging has ended, but not all of its entries could be written and sealed");
        }
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, StagingState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn stage_for_power(&self, records: &[Record]) -> Result<(), Error> {
        let lines = prepare(records);
        let mut state = self.lock();
        self.add(&mut state, lines, Durability::Power)?;
        let commit = Arc::clone(&state.next);
        if commit.try_lead() {
            // Wait for the running sync before the next one starts. Producers that stage records
            // meanwhile join this commit group, so that one sync is enough for all of them.
            state = self.wait_while_syncing(state);
            // Sync only if the group still waits for the next sync. Otherwise the entry was
            // abandoned after an error, or handed over to the background thread. The group is
            // completed there, and a sync here would sync another entry.
            if Arc::ptr_eq(&commit, &state.next) {
                state = self.sync(state);
                self.retire_if_full(&mut state);
            }
        }
        drop(state);
        commit.wait_for_result()
    }

    /// Waits until no sync of the open entry is running.
    fn wait_while_syncing<'a>(
        &'a self,
        mut state: MutexGuard<'a, StagingState>,
    ) -> MutexGuard<'a, StagingState> {
        while let Some(running) = state.running.clone() {
            drop(state);
            running.wait_until_done();
            state = self.lock();
        }
        state
    }

    /// Writes records to the open entry without a sync. The keeper, a background thread, syncs them
    /// within [`SYNC_WITHIN`].
    fn stage_for_process(&self, records: &[Record]) -> Result<(), Error> {
        let lines = prepare(records);
        let mut state = self.lock();
        if state.unsynced_bytes() > MAX_UNSYNCED {
            let error = state.trouble.clone().unwrap_or_else(|| {
                let busy = std::io::Error::from(std::io::ErrorKind::ResourceBusy);
                Error::new("sync the staged records in", &self.dir, busy)
            });
            return Err(error);
        }
        let acknowledged = state.entry.as_ref().map_or(0, OpenEntry::unsynced_bytes);
        self.add(&mut state, lines, Durability::Process)?;
        let Some(entry) = &mut state.entry else {
            return Ok(());
        };
        if let Err(error) = entry.write(&*self.disk) {
            entry.truncate_unsynced(acknowledged);
            state.abandon_open_entry(&error);
            self.keeper.notify_all();
            return Err(error);
        }
        if state.unsynced.is_none() {
            state.unsynced = Some(Instant::now());
            self.keeper.notify_all();
        }
        self.retire_if_full(&mut state);
        Ok(())
    }

    /// Adds records to the open entry, or to a new one.
    fn add(
        &self,
        state: &mut StagingState,
        lines: Vec<PreparedLine<'_>>,
        durability: Durability,
    ) -> Result<(), Error> {
        if state.entry.is_none() {
            self.check_reserve(state)?;
            state.entry = Some(OpenEntry::create(&*self.disk, &self.dir)?);
            self.keeper.notify_all();
        }
        if let Some(entry) = &mut state.entry {
            for line in lines {
                entry.add(line, durability);
            }
        }
        Ok(())
    }

    /// Fails without a reserve, because a record on a full disk could not be delivered then.
    /// Creates the reserve as soon as the disk has space.
    fn check_reserve(&self, state: &mut StagingState) -> Result<(), Error> {
        if self.has_reserve() {
            return Ok(());
        }
        let is_recent = |at: Instant| at.elapsed() < RESERVE_PAUSE;
        if state.reserve_failed_at.is_some_and(is_recent) {
            let full = std::io::Error::from(std::io::ErrorKind::StorageFull);
            return Err(Error::new("stage in", &self.dir, full));
        }
        let created = self.reserve.create(&*self.disk, self.limits.reserve);
        state.reserve_failed_at = created.is_err().then(Instant::now);
        created
    }

    fn has_reserve(&self) -> bool {
        self.limits.reserve == 0 || self.reserve.exists()
    }

    /// Syncs all records of the open entry, and wakes the producers that wait for them.
    fn sync<'a>(&'a self, mut state: MutexGuard<'a, StagingState>) -> MutexGuard<'a, StagingState> {
        let Some(entry) = &mut state.entry else {
            return state;
        };
        if let Err(error) = entry.write(&*self.disk) {
            state.abandon_open_entry(&error);
            return state;
        }
        let (file, path, extent) = (entry.file(), entry.path().to_owned(), entry.sync_extent());
        let is_named = entry.is_named;
        let commit = std::mem::take(&mut state.next);
        state.unsynced = None;
        state.running = Some(Arc::clone(&commit));
        drop(state);
        let mut synced = self
            .disk
            .sync(&file)
            .map_err(|error| Error::new("sync", &path, error));
        if synced.is_ok() && !is_named {
            synced = self
                .disk
                .sync_dir(&self.dir)
                .map_err(|error| Error::new("sync", &self.dir, error));
        }
        drop(file);
        let mut state = self.lock();
        state.running = None;
        match &synced {
            Ok(()) => {
                if let Some(entry) = state.find(&path) {
                    entry.mark_synced(extent);
                }
            }
            Err(error) => state.abandon_entry(&path, error),
        }
        if !self.has_reserve() {
            // A missing reserve means that the disk is full. No more records go into the entry, so
            // that the remaining space is left for the deliverer.
            self.retire(&mut state);
        }
        drop(state);
        commit.complete(synced);
        self.lock()
    }

    fn retire_if_full(&self, state: &mut StagingState) {
        let is_full = state.entry.as_ref().is_some_and(|entry| {
            entry.records >= self.limits.records || entry.bytes >= self.limits.bytes
        });
        if is_full {
            self.retire(state);
        }
    }

    /// Hands the open entry over to the keeper, the background thread, which seals it. The next
    /// record begins a new entry, so that producers need not wait for the seal.
    fn retire(&self, state: &mut StagingState) {
        if let Some(entry) = state.entry.take() {
            let commit = std::mem::take(&mut state.next);
            state.unsynced = None;
            state.retired.push_back(RetiredEntry {
                entry,
                commit,
                not_before: None,
            });
            self.keeper.notify_all();
        }
    }

    /// Seals all entries, and writes a new entry with the records that a failed sync may have lost.
    fn seal_all(&self) -> Result<(), Error> {
        let _background = self.lock_background();
        let mut state = self.lock();
        self.retire(&mut state);
        drop(state);
        let rescued = self.rescue(None);
        let sealed = self.seal_retired(None).and(rescued);
        self.lock().end_trouble();
        sealed
    }

    fn lock_background(&self) -> MutexGuard<'_, ()> {
        self.background
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// Seals the entries to which no more records are added. If `now` is given, skips the entries
    /// whose last seal failed and is to be repeated after `now`.
    fn seal_retired(&self, now: Option<Instant>) -> Result<(), Error> {
        let mut failed = Ok(());
        let mut later = VecDeque::new();
        loop {
            let mut state = self.lock();
            let Some(mut retired) = state.retired.pop_front() else {
                state.retired = later;
                return failed;
            };
            if is_later(retired.not_before, now) {
                later.push_back(retired);
                continue;
            }
            // A producer may still be syncing this file. The kernel reports a failed write to one
            // sync only, so the seal must not sync the file before that result is known.
            state.retired.push_front(retired);
            state = self.wait_while_syncing(state);
            match state.retired.pop_front() {
                Some(first) => retired = first,
                // No entry is left to seal. The running sync has failed, and the failure has
                // removed the entry from the queue; its acknowledged records go to a new file.
                None => continue,
            }
            drop(state);
            let sealed = retired.entry.seal(&*self.disk, &self.dir);
            retired.commit.complete(sealed.clone());
            if let Err(error) = sealed {
                let mut state = self.lock();
                state.begin_trouble(&error);
                if retired.entry.has_unknown_content() {
                    // Acknowledged records that are not synced go to a new file. Without such
                    // records the entry is only closed, which releases the lock of its file, so
                    // that a consolidator can recover and seal it.
                    state.rescue_unsynced(retired.entry, &error);
                } else {
                    retired.not_before = Some(now.unwrap_or_else(Instant::now) + RETRY_AFTER);
                    later.push_back(retired);
                }
                failed = Err(error);
            }
        }
    }

    /// Writes a new file with the records that a failed sync may have lost, if that is due at this
    /// time.
    fn rescue(&self, now: Option<Instant>) -> Result<(), Error> {
        let mut state = self.lock();
        if state.rescue.is_empty() || is_later(state.rescue.not_before, now) {
            return Ok(());
        }
        let mut rescue = std::mem::take(&mut state.rescue);
        drop(state);
        let written = rescue.write(&*self.disk, &self.dir);
        let mut state = self.lock();
        if let Err(error) = &written {
            rescue.not_before = Some(now.unwrap_or_else(Instant::now) + RETRY_AFTER);
            state.rescue.put_back(rescue);
            state.begin_trouble(error);
        }
        written
    }

    /// Runs the background tasks that are due at `now`: writes records that a failed sync may have
    /// lost to a new file, seals full and old entries, and syncs records that were staged with
    /// [`Durability::Process`].
    fn run_due_tasks(&self, now: Instant) {
        let _background = self.lock_background();
        // Skip the other tasks while records that a failed sync may have lost cannot be written
        // again. The disk fails, and the tasks would only leave more files with unknown content.
        if self.rescue(Some(now)).is_err() || !self.lock().rescue.is_empty() {
            return;
        }
        let mut state = self.lock();
        let entry = state.entry.as_ref();
        if entry.is_some_and(|entry| entry.first_record + self.limits.age <= now) {
            self.retire(&mut state);
        }
        drop(state);
        // The error of a failed seal is ignored here, because `trouble` reports it.
        let _ = self.seal_retired(Some(now));
        let mut state = self.lock();
        if state
            .unsynced
            .is_some_and(|since| since + SYNC_WITHIN <= now)
        {
            state = self.wait_while_syncing(state);
            state = self.sync(state);
        }
        state.end_trouble();
    }

    /// Body of the keeper, the background thread: runs due tasks until staging is closed.
    fn run_keeper(&self) {
        let mut state = self.lock();
        while !state.is_closed {
            let now = Instant::now();
            let due = state.due(now, self.limits.age);
            if due.is_some_and(|due| due <= now) {
                drop(state);
                self.run_due_tasks(now);
                state = self.lock();
                continue;
            }
            let pause = due.map_or(Duration::from_secs(3600), |due| {
                due.saturating_duration_since(now)
            });
            state = self
                .keeper
                .wait_timeout(state, pause)
                .unwrap_or_else(PoisonError::into_inner)
                .0;
        }
    }
}

/// True if a task must wait, because its earliest time `not_before` is later than `now`. If `now`
/// is `None`, no task waits.
fn is_later(not_before: Option<Instant>, now: Option<Instant>) -> bool {
    matches!((not_before, now), (Some(at), Some(now)) if at > now)
}

/// Formats the lines of records. Callers do this before they lock the state, so that other
/// producers need not wait for it.
fn prepare(records: &[Record]) -> Vec<PreparedLine<'_>> {
    records.iter().map(PreparedLine::new).collect()
}

impl StagingState {
    /// Number of bytes of all records that are acknowledged and not synced, which [`MAX_UNSYNCED`]
    /// limits.
    fn unsynced_bytes(&self) -> usize {
        let retired = self.retired.iter().map(|retired| &retired.entry);
        let entries = self.entry.iter().chain(retired);
        entries.map(OpenEntry::unsynced_bytes).sum::<usize>() + self.rescue.bytes()
    }

    /// Returns the time of the next task of the keeper, the background thread; `None` if it has no
    /// task.
    fn due(&self, now: Instant, age: Duration) -> Option<Instant> {
        if !self.rescue.is_empty() {
            return Some(self.rescue.not_before.unwrap_or(now));
        }
        let sync_at = self.unsynced.map(|since| since + SYNC_WITHIN);
        let seal_at = self.entry.as_ref().map(|entry| entry.first_record + age);
        let retired = self.retired.iter();
        let retired = retired.map(|retired| retired.not_before.unwrap_or(now));
        retired.chain(sync_at).chain(seal_at).min()
    }

    fn find(&mut self, path: &Path) -> Option<&mut OpenEntry> {
        let retired = self.retired.iter_mut().map(|retired| &mut retired.entry);
        let mut all = self.entry.iter_mut().chain(retired);
        all.find(|entry| entry.path() == path)
    }

    /// Abandons the open entry after an error. Producers that wait for a sync of the entry get the
    /// error. Records that were acknowledged before are written to a new file.
    fn abandon_open_entry(&mut self, error: &Error) {
        std::mem::take(&mut self.next).complete(Err(error.clone()));
        self.unsynced = None;
        if let Some(entry) = self.entry.take() {
            self.rescue_unsynced(entry, error);
        }
    }

    /// Abandons the entry whose sync has failed. The content of its file is unknown from here on: a
    /// later sync of the same file may succeed although data was lost.
    fn abandon_entry(&mut self, path: &Path, error: &Error) {
        if self
            .entry
            .as_ref()
            .is_some_and(|entry| entry.path() == path)
        {
            return self.abandon_open_entry(error);
        }
        let mut retired = self.retired.iter();
        if let Some(index) = retired.position(|retired| retired.entry.path() == path)
            && let Some(abandoned) = self.retired.remove(index)
        {
            abandoned.commit.complete(Err(error.clone()));
            self.rescue_unsynced(abandoned.entry, error);
        }
    }

    /// Queues the acknowledged records of an abandoned entry that may not be on the disk. They are
    /// written to a new file later. Without such records, the entry's file is closed and left to
    /// recovery.
    fn rescue_unsynced(&mut self, entry: OpenEntry, error: &Error) {
        if entry.unsynced_bytes() > 0 {
            self.begin_trouble(error);
            self.rescue.add(entry);
        }
    }

    fn begin_trouble(&mut self, error: &Error) {
        if self.trouble.replace(error.clone()).is_none() {
            tracing::warn!(%error, "cannot sync or seal staged records: those that may not be on the disk are written again");
        }
    }

    /// Clears `trouble`, the error that [`Staging::trouble`] returns, when all records that a
    /// failed sync may have lost are written again and no failed seal is left to repeat.
    fn end_trouble(&mut self) {
        let has_failed = |retired: &RetiredEntry| retired.not_before.is_some();
        let has_unfinished = !self.rescue.is_empty() || self.retired.iter().any(has_failed);
        if !has_unfinished && self.trouble.take().is_some() {
            tracing::info!("all staged records are on the disk again");
        }
    }
}
