//! Staging: records are on the disk before anyone is told so, and many producers share one sync.

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

/// When an entry is sealed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    pub(crate) records: u64,
    pub(crate) bytes: u64,
    /// After its first record.
    pub(crate) age: Duration,
    /// Length of the reserve for a full disk.
    pub(crate) reserve: usize,
}

impl Limits {
    /// How many of these records fit into an entry; at least one.
    fn fit(&self, records: &[Record]) -> usize {
        let mut bytes = 0;
        let most = usize::try_from(self.records).unwrap_or(usize::MAX);
        let fitting = records.iter().take(most).take_while(|record| {
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

/// What a record that was staged survives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Durability {
    /// A power failure: data and name are on the disk when `stage` returns.
    Power,
    /// The end of this process, however it ends: the record is with the kernel when `stage`
    /// returns, and on the disk some milliseconds later.
    Process,
}

/// How often it is tried to create the reserve.
const RESERVE_PAUSE: Duration = Duration::from_millis(if cfg!(test) { 1 } else { 1000 });

/// Maximum number of bytes of records that are acknowledged and not on the disk yet.
const MOST_UNSYNCED: usize = 64 << 20;

/// How soon the disk follows what was staged for [`Durability::Process`].
const SYNC_WITHIN: Duration = Duration::from_millis(50);

/// The way into a staging directory. Any number of threads may stage at once.
///
/// ```
/// use spool::{Durability, Record, Staging};
///
/// let dir = tempfile::tempdir()?;
/// let staging = Staging::open(dir.path())?;
/// let record = Record::parse(r#"{"model":"llama3","tokens":42}"#)?;
/// staging.stage(&record, Durability::Power)?; // now it is safe
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
    /// Held by the thread that seals and rescues.
    background: Mutex<()>,
    /// Wakes the keeper.
    keeper: Condvar,
}

/// An entry to which nothing is added any more.
#[derive(Debug)]
struct RetiredEntry {
    entry: OpenEntry,
    /// Producers that wait for its records.
    commit: Arc<CommitGroup>,
    /// An attempt to seal it has failed: the next one is not before this time.
    not_before: Option<Instant>,
}

#[derive(Debug, Default)]
struct StagingState {
    entry: Option<OpenEntry>,
    /// Those who wait for the next sync.
    next: Arc<CommitGroup>,
    /// The sync that is under way.
    running: Option<Arc<CommitGroup>>,
    /// Since when something that the kernel has is not on the disk.
    unsynced: Option<Instant>,
    /// To be sealed, by the keeper: a sync may take long, and producers must not wait for it.
    retired: VecDeque<RetiredEntry>,
    rescue: Rescue,
    /// Why records that were acknowledged may not be on the disk, or entries are not sealed.
    trouble: Option<Error>,
    /// When it was last tried in vain to create the reserve.
    full_since: Option<Instant>,
    is_closed: bool,
}

impl Staging {
    /// Opens a staging directory, which is made if need be.
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
            // It can be opened all the same: there may be room later.
            tracing::warn!(%error, "nothing can be staged until there is room");
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

    /// Starts the thread that syncs and seals.
    fn start_keeper(&mut self) -> Result<(), Error> {
        let kept = Arc::clone(&self.shared);
        let keeper = thread::Builder::new()
            .name("spool-keeper".to_owned())
            .spawn(move || kept.keep())
            .map_err(|error| Error::new("start a thread for", &self.shared.dir, error))?;
        self.keeper = Some(keeper);
        Ok(())
    }

    /// Ends as a process does that is killed: nothing is sealed.
    #[cfg(all(test, target_os = "linux"))]
    pub(crate) fn abandon(self) {
        self.shared.lock().is_closed = true;
    }

    /// Does what the keeper would do by this time. For tests, which have no keeper.
    #[cfg(test)]
    pub(crate) fn work(&self, now: Instant) {
        self.shared.work(now);
    }

    /// Stages a record. When this returns it is as safe as was asked for.
    ///
    /// After an error it is unknown whether the record is there: stage it again.
    pub fn stage(&self, record: &Record, durability: Durability) -> Result<(), Error> {
        self.stage_all(std::slice::from_ref(record), durability)
    }

    /// Stages many records at the price of one. When this returns all of them are as safe as was
    /// asked for.
    ///
    /// After an error it is unknown which of them are there: stage them all again.
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
        // What does not fit into one entry goes into several, so that memory is bounded.
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

    /// Whether records can be staged now: tries to make room for one.
    ///
    /// ```
    /// use spool::Staging;
    ///
    /// let dir = tempfile::tempdir()?;
    /// let staging = Staging::open(dir.path())?;
    /// staging.check()?; // there is room
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn check(&self) -> Result<(), Error> {
        match self.trouble() {
            Some(error) => Err(error),
            None => self.shared.stage_for_process(&[]),
        }
    }

    /// Why records that were acknowledged may not survive a power failure, if that is so: a sync that
    /// followed [`Durability::Process`] has failed, or an entry cannot be sealed. They are written
    /// again to a new file, which is tried every second; this is `None` again when the disk has them.
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

    /// Seals what is open, so that it can be consolidated at once.
    pub fn seal(&self) -> Result<(), Error> {
        self.shared.seal_all()
    }

    /// Seals what is open and reports whether everything went well. Dropping does the same without
    /// the report.
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
            tracing::warn!(%error, "closing the staging directory");
        }
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, StagingState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn stage_for_power(&self, records: &[Record]) -> Result<(), Error> {
        let lines = prepared(records);
        let mut state = self.lock();
        self.add(&mut state, lines, Durability::Power)?;
        let commit = Arc::clone(&state.next);
        if commit.lead() {
            // The time of the sync before this one is that in which its records gather.
            state = self.until_free(state);
            // If the entry was retired meanwhile, the keeper syncs it.
            if Arc::ptr_eq(&commit, &state.next) {
                state = self.sync(state);
                self.retire_if_full(&mut state);
            }
        }
        drop(state);
        commit.outcome()
    }

    /// Waits until nobody is syncing.
    fn until_free<'a>(
        &'a self,
        mut state: MutexGuard<'a, StagingState>,
    ) -> MutexGuard<'a, StagingState> {
        while let Some(running) = state.running.clone() {
            drop(state);
            running.until_over();
            state = self.lock();
        }
        state
    }

    /// Hands records to the kernel. Nothing here waits for the disk: that is the keeper's work.
    fn stage_for_process(&self, records: &[Record]) -> Result<(), Error> {
        let lines = prepared(records);
        let mut state = self.lock();
        if state.kept() > MOST_UNSYNCED {
            let slow = state.trouble.clone().unwrap_or_else(|| {
                let busy = std::io::Error::from(std::io::ErrorKind::ResourceBusy);
                Error::new("sync what was staged in", &self.dir, busy)
            });
            return Err(slow);
        }
        let kept = state.entry.as_ref().map_or(0, OpenEntry::kept);
        self.add(&mut state, lines, Durability::Process)?;
        let Some(entry) = &mut state.entry else {
            return Ok(());
        };
        if let Err(error) = entry.write(&*self.disk) {
            entry.keep_only(kept);
            state.give_up(&error);
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

    /// Refuses to stage without a reserve: on a full disk the record could not be delivered. The reserve
    /// is created as soon as there is room for it.
    fn check_reserve(&self, state: &mut StagingState) -> Result<(), Error> {
        if self.has_reserve() {
            return Ok(());
        }
        let is_soon = |since: Instant| since.elapsed() < RESERVE_PAUSE;
        if state.full_since.is_some_and(is_soon) {
            let full = std::io::Error::from(std::io::ErrorKind::StorageFull);
            return Err(Error::new("stage in", &self.dir, full));
        }
        let created = self.reserve.create(&*self.disk, self.limits.reserve);
        state.full_since = created.is_err().then(Instant::now);
        created
    }

    fn has_reserve(&self) -> bool {
        self.limits.reserve == 0 || self.reserve.exists()
    }

    /// Puts everything that was added so far on the disk, and tells those who wait for it.
    fn sync<'a>(&'a self, mut state: MutexGuard<'a, StagingState>) -> MutexGuard<'a, StagingState> {
        let Some(entry) = &mut state.entry else {
            return state;
        };
        if let Err(error) = entry.write(&*self.disk) {
            state.give_up(&error);
            return state;
        }
        let (file, path, mark) = (entry.file(), entry.path().to_owned(), entry.mark());
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
                    entry.is_synced(mark);
                }
            }
            Err(error) => state.lose(&path, error),
        }
        if !self.has_reserve() {
            // The disk is full: what room is left is for the deliverer.
            self.retire(&mut state);
        }
        drop(state);
        commit.settle(synced);
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

    /// Leaves the open entry to whoever seals it. Others may begin a new one.
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

    /// Seals everything that was staged so far, and writes again what has to be.
    fn seal_all(&self) -> Result<(), Error> {
        let _turn = self.background();
        let mut state = self.lock();
        self.retire(&mut state);
        drop(state);
        let rescued = self.rescue(None);
        let sealed = self.seal_retired(None).and(rescued);
        self.lock().end_trouble();
        sealed
    }

    fn background(&self) -> MutexGuard<'_, ()> {
        self.background
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// Seals, one after another, the entries that are due by this time; all of them without one.
    fn seal_retired(&self, now: Option<Instant>) -> Result<(), Error> {
        let mut failed = Ok(());
        let mut later = VecDeque::new();
        loop {
            let mut state = self.lock();
            let Some(mut retired) = state.retired.pop_front() else {
                state.retired = later;
                return failed;
            };
            if retired.is_later(now) {
                later.push_back(retired);
                continue;
            }
            // It may still be the file that is being synced: whoever does that learns of a failure,
            // and a sync that comes after it would not.
            state.retired.push_front(retired);
            state = self.until_free(state);
            match state.retired.pop_front() {
                Some(first) => retired = first,
                // The sync has failed, and the entry was given up.
                None => continue,
            }
            drop(state);
            let sealed = retired.entry.seal(&*self.disk, &self.dir);
            retired.commit.settle(sealed.clone());
            if let Err(error) = sealed {
                let mut state = self.lock();
                state.begin_trouble(&error);
                if retired.entry.is_doubtful() {
                    state.rescue.add(retired.entry);
                } else {
                    retired.not_before = Some(now.unwrap_or_else(Instant::now) + RETRY_AFTER);
                    later.push_back(retired);
                }
                failed = Err(error);
            }
        }
    }

    /// Writes again what a failed sync may have lost, if that is due by this time.
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

    /// Does what is due by this time: writes again what may be lost, seals what is full or old, syncs
    /// what was staged for the process's end.
    fn work(&self, now: Instant) {
        let _turn = self.background();
        // While the disk fails nothing but this is tried: it would only leave more doubtful files.
        if self.rescue(Some(now)).is_err() || !self.lock().rescue.is_empty() {
            return;
        }
        let mut state = self.lock();
        let entry = state.entry.as_ref();
        if entry.is_some_and(|entry| entry.first_record + self.limits.age <= now) {
            self.retire(&mut state);
        }
        drop(state);
        // A failure is noted in the state.
        let _ = self.seal_retired(Some(now));
        let mut state = self.lock();
        if state
            .unsynced
            .is_some_and(|since| since + SYNC_WITHIN <= now)
        {
            state = self.until_free(state);
            state = self.sync(state);
        }
        state.end_trouble();
    }

    /// The keeper's thread.
    fn keep(&self) {
        let mut state = self.lock();
        while !state.is_closed {
            let now = Instant::now();
            let due = state.due(now, self.limits.age);
            if due.is_some_and(|due| due <= now) {
                drop(state);
                self.work(now);
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

/// True if something is to be done after this time. Without one everything is done now.
fn is_later(not_before: Option<Instant>, now: Option<Instant>) -> bool {
    matches!((not_before, now), (Some(at), Some(now)) if at > now)
}

impl RetiredEntry {
    fn is_later(&self, now: Option<Instant>) -> bool {
        is_later(self.not_before, now)
    }
}

/// What can be done before it is one's turn.
fn prepared(records: &[Record]) -> Vec<PreparedLine<'_>> {
    records.iter().map(PreparedLine::new).collect()
}

impl StagingState {
    /// How many bytes of records are acknowledged and not on the disk.
    fn kept(&self) -> usize {
        let retired = self.retired.iter().map(|retired| retired.entry.kept());
        let entry = self.entry.iter().map(OpenEntry::kept);
        entry.chain(retired).sum::<usize>() + self.rescue.kept()
    }

    /// When the keeper has something to do next.
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

    /// Gives the open entry up after an error. Producers that wait for it are told that they cannot
    /// know. Records that were acknowledged before are written again.
    fn give_up(&mut self, error: &Error) {
        std::mem::take(&mut self.next).settle(Err(error.clone()));
        self.unsynced = None;
        if let Some(entry) = self.entry.take() {
            self.doubt(entry, error);
        }
    }

    /// A sync of this file has failed: what the disk has of it is unknown from here on.
    fn lose(&mut self, path: &Path, error: &Error) {
        if self
            .entry
            .as_ref()
            .is_some_and(|entry| entry.path() == path)
        {
            return self.give_up(error);
        }
        let mut retired = self.retired.iter();
        if let Some(at) = retired.position(|retired| retired.entry.path() == path)
            && let Some(lost) = self.retired.remove(at)
        {
            lost.commit.settle(Err(error.clone()));
            self.doubt(lost.entry, error);
        }
    }

    fn doubt(&mut self, entry: OpenEntry, error: &Error) {
        if entry.kept() > 0 {
            self.begin_trouble(error);
            self.rescue.add(entry);
        }
    }

    fn begin_trouble(&mut self, error: &Error) {
        if self.trouble.replace(error.clone()).is_none() {
            tracing::warn!(%error, "staged records may not be on the disk: they are written again");
        }
    }

    /// Ends the trouble if there is nothing left to do of what failed.
    fn end_trouble(&mut self) {
        let has_failed = |retired: &RetiredEntry| retired.not_before.is_some();
        let goes_on = !self.rescue.is_empty() || self.retired.iter().any(has_failed);
        if !goes_on && self.trouble.take().is_some() {
            tracing::info!("all staged records are on the disk again");
        }
    }
}
