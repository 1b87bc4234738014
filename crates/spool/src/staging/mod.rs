//! Staging: records are on the disk before anyone is told so, and many producers share one sync.

mod commit;
mod open_entry;
#[cfg(test)]
mod tests;

use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use crate::disk::{Disk, RealDisk};
use crate::error::Error;
use crate::line::Prepared;
use crate::record::Record;
use crate::reserve::{self, Reserve};
use commit::Commit;
use open_entry::OpenEntry;

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
const RESERVE_PAUSE: Duration = Duration::from_secs(1);

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
    state: Mutex<State>,
    /// Wakes the keeper.
    keeper: Condvar,
}

#[derive(Debug, Default)]
struct State {
    entry: Option<OpenEntry>,
    /// Those who wait for the next sync.
    next: Arc<Commit>,
    /// The sync that is under way.
    running: Option<Arc<Commit>>,
    /// Since when something that the kernel has is not on the disk.
    unsynced: Option<Instant>,
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
            keeper: Condvar::new(),
        });
        let kept = Arc::clone(&shared);
        let keeper = thread::Builder::new()
            .name("spool-keeper".to_owned())
            .spawn(move || kept.keep())
            .map_err(|error| Error::new("start a thread for", dir, error))?;
        Ok(Self {
            shared,
            keeper: Some(keeper),
        })
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
        self.shared.stage_for_process(&[])
    }

    /// Seals what is open, so that it can be consolidated at once.
    pub fn seal(&self) -> Result<(), Error> {
        self.shared.seal(self.shared.lock()).1
    }

    /// Seals what is open and reports whether everything went well. Dropping does the same without
    /// the report.
    pub fn close(mut self) -> Result<(), Error> {
        self.end()
    }

    fn end(&mut self) -> Result<(), Error> {
        let Some(keeper) = self.keeper.take() else {
            return Ok(());
        };
        self.shared.lock().is_closed = true;
        self.shared.keeper.notify_all();
        let _ = keeper.join();
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
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn stage_for_power(&self, records: &[Record]) -> Result<(), Error> {
        let lines = prepared(records);
        let mut state = self.lock();
        self.add(&mut state, lines)?;
        let commit = Arc::clone(&state.next);
        if commit.lead() {
            // The time of the sync before this one is that in which its records gather.
            state = self.until_free(state);
            // Whoever sealed the entry meanwhile took them to the disk.
            if Arc::ptr_eq(&commit, &state.next) {
                state = self.sync(state);
                state = self.seal_if_full(state);
            }
        }
        drop(state);
        commit.outcome()
    }

    /// Waits until nobody is syncing.
    fn until_free<'a>(&'a self, mut state: MutexGuard<'a, State>) -> MutexGuard<'a, State> {
        while let Some(running) = state.running.clone() {
            drop(state);
            running.until_over();
            state = self.lock();
        }
        state
    }

    fn stage_for_process(&self, records: &[Record]) -> Result<(), Error> {
        let lines = prepared(records);
        let mut state = self.lock();
        self.add(&mut state, lines)?;
        let Some(entry) = &mut state.entry else {
            return Ok(());
        };
        if let Err(error) = entry.write(&*self.disk) {
            state.abandon(&error);
            return Err(error);
        }
        if state.unsynced.is_none() {
            state.unsynced = Some(Instant::now());
            self.keeper.notify_all();
        }
        drop(self.seal_if_full(state));
        Ok(())
    }

    /// Adds records to the open entry, or to a new one.
    fn add(&self, state: &mut State, lines: Vec<Prepared<'_>>) -> Result<(), Error> {
        if state.entry.is_none() {
            self.check_reserve(state)?;
            state.entry = Some(OpenEntry::create(&*self.disk, &self.dir)?);
            self.keeper.notify_all();
        }
        if let Some(entry) = &mut state.entry {
            for line in lines {
                entry.add(line);
            }
        }
        Ok(())
    }

    /// Nothing is staged without a reserve: on a full disk it could not be delivered. It is created as
    /// soon as there is room for it.
    fn check_reserve(&self, state: &mut State) -> Result<(), Error> {
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
        self.limits.reserve == 0 || self.reserve.is_there()
    }

    /// Puts everything that was added so far on the disk, and tells those who wait for it.
    fn sync<'a>(&'a self, mut state: MutexGuard<'a, State>) -> MutexGuard<'a, State> {
        let Some(entry) = &mut state.entry else {
            return state;
        };
        if let Err(error) = entry.write(&*self.disk) {
            state.abandon(&error);
            return state;
        }
        let (file, path) = (entry.file(), entry.path().to_owned());
        let is_named = std::mem::replace(&mut entry.is_named, true);
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
        let mut state = self.lock();
        state.running = None;
        let is_same = state
            .entry
            .as_ref()
            .is_some_and(|entry| entry.path() == path);
        if let Err(error) = &synced
            && is_same
        {
            // What the disk has of this file is unknown from here on.
            state.abandon(error);
        }
        drop(state);
        commit.settle(synced);
        self.lock()
    }

    fn seal_if_full<'a>(&'a self, state: MutexGuard<'a, State>) -> MutexGuard<'a, State> {
        let is_full = state.entry.as_ref().is_some_and(|entry| {
            entry.records >= self.limits.records || entry.bytes >= self.limits.bytes
        });
        if is_full {
            self.seal_and_warn(state)
        } else {
            state
        }
    }

    fn seal_and_warn<'a>(&'a self, state: MutexGuard<'a, State>) -> MutexGuard<'a, State> {
        let (state, sealed) = self.seal(state);
        if let Err(error) = sealed {
            tracing::warn!(%error, "an entry stays open until it is recovered");
        }
        state
    }

    /// Seals the open entry, if there is one. Those who wait for it are told how that went.
    fn seal<'a>(
        &'a self,
        mut state: MutexGuard<'a, State>,
    ) -> (MutexGuard<'a, State>, Result<(), Error>) {
        state = self.until_free(state);
        let Some(entry) = state.entry.take() else {
            return (state, Ok(()));
        };
        let commit = std::mem::take(&mut state.next);
        state.unsynced = None;
        // Others may begin a new entry meanwhile.
        drop(state);
        let sealed = entry.seal(&*self.disk, &self.dir);
        commit.settle(sealed.clone());
        (self.lock(), sealed)
    }

    /// Syncs what was staged for the process's end, and seals what has grown old.
    fn keep(&self) {
        let mut state = self.lock();
        while !state.is_closed {
            let now = Instant::now();
            let sync_at = state.unsynced.map(|since| since + SYNC_WITHIN);
            let entry = state.entry.as_ref();
            let seal_at = entry.map(|entry| entry.first_record + self.limits.age);
            if seal_at.is_some_and(|at| at <= now) {
                state = self.seal_and_warn(state);
                continue;
            }
            if sync_at.is_some_and(|at| at <= now) && state.running.is_none() {
                state = self.sync(state);
                continue;
            }
            let next = sync_at.into_iter().chain(seal_at).min();
            let pause = next.map_or(Duration::from_secs(3600), |at| {
                at.saturating_duration_since(now)
                    .max(Duration::from_millis(1))
            });
            state = self
                .keeper
                .wait_timeout(state, pause)
                .unwrap_or_else(PoisonError::into_inner)
                .0;
        }
    }
}

/// What can be done before it is one's turn.
fn prepared(records: &[Record]) -> Vec<Prepared<'_>> {
    records.iter().map(Prepared::new).collect()
}

impl State {
    /// Gives the open entry up: its lock ends, and whoever recovers it keeps what is whole. Those
    /// who wait for it are told that they cannot know.
    fn abandon(&mut self, error: &Error) {
        self.entry = None;
        self.unsynced = None;
        std::mem::take(&mut self.next).settle(Err(error.clone()));
    }
}
