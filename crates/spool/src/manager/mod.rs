//! The batches of a data directory: pending, delivered, failed or archived.

mod earlier_batches;
mod held_outcomes;
mod ledger;
mod look;
mod pause;
mod retention;
mod state;

use std::collections::{BinaryHeap, HashSet};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

pub(crate) use earlier_batches::EarlierBatch;
pub(crate) use held_outcomes::HeldOutcomes;
#[cfg(all(test, target_os = "linux"))]
pub(crate) use ledger::MAX_EVENTS;
pub(crate) use ledger::{BatchEvent, BatchOutcome, OutcomeIndex, OutcomeSums};
pub use look::{Failed, PendingBatch};
pub use pause::Pause;
pub(crate) use pause::Standing;
pub(crate) use pause::{NAME as PAUSE_FILE, check as check_pause};
pub use retention::{FileTotals, Keep, KeptIn};
pub(crate) use state::DeliveryState;

use crate::batch::{self, Batch, BatchDamage};
use crate::data_dir::DataDir;
use crate::disk::{Disk, RealDisk};
use crate::error::Error;
use crate::fence::{Fence, FencedDisk};
use crate::files::{
    self, for_each_file, move_file, read_bounded, write_atomically, write_batch, write_half_batch,
};
use crate::journal::{decode_version, encode};
use crate::quarantine::{BatchReason, Reason, move_aside};
use crate::reserve::Reserve;
use crate::time::Moment;
use ledger::Ledger;

/// Result of loading a batch for delivery.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum LoadedBatch {
    /// The batch is pending and intact, so it can be sent.
    Batch(Batch),
    /// The batch does not exist any more, or its outcome is in the journal.
    Gone,
    /// The batch was damaged and moved to `failed/`.
    Damaged,
}

/// Access to the batches of a data directory. Consolidation and delivery use the files of batches
/// only through it. One deliverer uses it at a time.
///
/// ```
/// use spool::{Durability, Options, Record, SpoolManager, Staging, consolidate};
///
/// let data = tempfile::tempdir()?;
/// let staging = Staging::open(data.path().join("_staging"))?;
/// staging.stage(&Record::parse(r#"{"tokens":42}"#)?, Durability::Power)?;
/// staging.close()?;
/// consolidate(data.path(), &Options::default())?;
///
/// let spool = SpoolManager::new(data.path());
/// for name in spool.pending(None, 100)? {
///     let batch = spool.load(&name)?;
///     assert_eq!(batch.records().len(), 1);
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct SpoolManager {
    disk: Arc<dyn Disk>,
    data: DataDir,
    /// Journal of outcomes, opened at the first event. Only the deliverer writes events.
    ledger: Mutex<Option<Ledger>>,
    /// Names of halves whose split could not be finished. They are not sent while the whole batch
    /// is pending.
    held_halves: Mutex<HashSet<String>>,
    /// Outcomes of batches, read once for a consolidation that resumes an unfinished snapshot. They
    /// keep the consolidation from writing a finished batch again.
    index: Mutex<Option<OutcomeIndex>>,
}

impl SpoolManager {
    /// Creates a manager for the batches of a data directory. The directory need not exist, and
    /// reading does not create it.
    pub fn new(data: impl AsRef<Path>) -> Self {
        Self::on(Arc::new(RealDisk), data.as_ref())
    }

    /// Returns a manager that changes nothing after the fence was lost.
    #[must_use]
    pub fn fenced(self, fence: Fence) -> Self {
        let data = self.data.root().to_owned();
        Self::on(Arc::new(FencedDisk::new(self.disk, fence)), &data)
    }

    /// Fails if the fence was lost. Called before each batch is sent.
    pub(crate) fn check_fence(&self) -> Result<(), Error> {
        let checked = self.disk.before_send();
        checked.map_err(|error| Error::new("deliver from", self.data.root(), error))
    }

    pub(crate) fn on(disk: Arc<dyn Disk>, data: &Path) -> Self {
        Self {
            data: DataDir::on(Arc::clone(&disk), data),
            disk,
            ledger: Mutex::default(),
            held_halves: Mutex::default(),
            index: Mutex::default(),
        }
    }

    /// Disk of the batches, which checks the fence.
    pub(crate) fn disk(&self) -> &dyn Disk {
        &*self.disk
    }

    /// Data directory of the batches.
    pub(crate) fn root(&self) -> &Path {
        self.data.root()
    }

    /// Reads and checks a pending batch. Changes nothing.
    pub fn load(&self, name: &str) -> Result<Batch, Error> {
        let path = self.data.spool.join(name);
        let bytes = self.content(&path)?;
        check(name, &bytes).map_err(|reason| Error::damage(&path, reason))
    }

    /// Moves a batch from `failed/` or `archive/` back to the pending batches. An ambiguous batch
    /// stays ambiguous and is never split.
    ///
    /// The caller must hold the [`DeliveryLock`](crate::DeliveryLock).
    pub fn resend(&self, name: &str) -> Result<(), Error> {
        let dirs = [&self.data.failed, &self.data.archive];
        let has_batch = |dir: &&PathBuf| self.exists(&dir.join(name)).unwrap_or(false);
        let from = dirs.into_iter().find(has_batch);
        let Some(dir) = from.filter(|_| batch::is_batch_name(name)) else {
            let path = self.data.failed.join(name);
            let reason = "there is no such batch in failed/ or archive/";
            return Err(Error::new("resend", &path, io::Error::other(reason)));
        };
        let path = dir.join(name);
        let bytes = self.content(&path)?;
        let batch = check(name, &bytes)
            .map_err(|reason| Error::new("resend", &path, io::Error::other(reason)))?;
        if self.outcome(name)? == Some(BatchOutcome::Discarded) {
            let reason = "it is being deleted to respect a limit";
            return Err(Error::new("resend", &path, io::Error::other(reason)));
        }
        self.data.make(&*self.disk)?;
        let reason = Reason::read(&*self.disk, &self.data.failed, name)?;
        let state = DeliveryState {
            unknown: (reason.as_ref().and_then(|reason| reason.batch.as_ref()))
                .is_some_and(|batch| batch.ambiguous),
            last_error: reason.map(|reason| reason.why),
            ..DeliveryState::default()
        };
        self.set_state(name, &state)?;
        let is_archived = *dir == self.data.archive;
        let outcome = if is_archived {
            BatchOutcome::Unarchived
        } else {
            BatchOutcome::Resent
        };
        self.add_event(&batch, outcome, "")?;
        move_file(&*self.disk, &path, &self.data.spool.join(name))?;
        self.remove(&self.data.failed.join(Reason::file_name(name)))
    }

    /// Drops the journal of batch outcomes from memory if another process has written to it, so
    /// that the next use reads it again.
    pub(crate) fn refresh(&self) {
        let mut ledger = self.ledger.lock().unwrap_or_else(PoisonError::into_inner);
        if ledger.as_ref().is_some_and(|ledger| !ledger.is_current()) {
            *ledger = None;
        }
    }

    /// Reopens the journal for reading only, so that the file system can be remounted read-only
    /// between runs. The next event opens the journal for writing again. If the reopening fails,
    /// the journal is dropped from memory, which closes its file.
    pub(crate) fn stop_writing(&self) {
        let mut ledger = self.ledger.lock().unwrap_or_else(PoisonError::into_inner);
        if ledger
            .as_mut()
            .is_some_and(|ledger| ledger.stop_writing().is_err())
        {
            *ledger = None;
        }
    }

    /// Returns the number of files in `failed/`, without hidden files and the files with the
    /// reasons.
    pub fn count_failed(&self) -> Result<u64, Error> {
        let mut count = 0;
        for_each_file(&*self.disk, &self.data.failed, |name| {
            count += u64::from(look::is_failed(name));
        })?;
        Ok(count)
    }

    fn lock_ledger(&self) -> Result<MutexGuard<'_, Option<Ledger>>, Error> {
        let mut ledger = self.ledger.lock().unwrap_or_else(PoisonError::into_inner);
        if ledger.as_ref().is_none_or(Ledger::is_superseded) {
            *ledger = Some(Ledger::open(&self.disk, &self.data)?);
        }
        Ok(ledger)
    }

    /// Adds an event to the journal of batch outcomes, or to the reserve if the disk is full.
    /// Synced when this returns.
    fn add_event(&self, batch: &Batch, outcome: BatchOutcome, message: &str) -> Result<(), Error> {
        let at = Moment::from(std::time::SystemTime::now());
        let event = BatchEvent::new(batch, outcome, at, message);
        let mut ledger = self.lock_ledger()?;
        let Some(ledger) = &mut *ledger else {
            return Ok(());
        };
        let hold = |ledger: &Ledger| {
            HeldOutcomes::add(&*self.disk, &self.data, ledger.index(), batch, &event)
        };
        if !HeldOutcomes::read(&self.data, ledger.index())?.is_empty() {
            // Outcomes in the reserve, which a full disk kept out of the journal, take precedence
            // over those in the journal. So a newer outcome must go to the reserve as well.
            return hold(ledger);
        }
        match ledger.add(&event) {
            Err(error) if error.is_full() => hold(ledger).map_err(|_| error),
            added => added,
        }
    }

    fn outcome(&self, name: &str) -> Result<Option<BatchOutcome>, Error> {
        let ledger = self.lock_ledger()?;
        let Some(ledger) = &*ledger else {
            return Ok(None);
        };
        let held = HeldOutcomes::read(&self.data, ledger.index())?;
        Ok(held.outcome(name).or_else(|| ledger.outcome(name)))
    }

    /// Writes the outcomes and batches that a full disk has kept in the reserve to the disk. The
    /// caller must hold the delivery lock.
    pub(crate) fn flush_reserve(&self) -> Result<(), Error> {
        let held = Reserve::new(&self.data.staging).read(&*self.disk);
        if held.is_ok_and(|held| held.is_empty()) {
            return Ok(());
        }
        if let Some(ledger) = &mut *self.lock_ledger()? {
            HeldOutcomes::flush(&*self.disk, &self.data, ledger)?;
        }
        let DataDir {
            spool,
            failed,
            archive,
            ..
        } = &self.data;
        files::flush(&*self.disk, &[spool, failed, archive])
    }

    /// True if a batch was added before and is no longer pending: it is in `failed/` or `archive/`,
    /// or the journal has its outcome.
    fn was_put(&self, name: &str) -> Result<bool, Error> {
        if self.exists(&self.data.failed.join(name))?
            || self.exists(&self.data.archive.join(name))?
        {
            return Ok(true);
        }
        let mut index = self.index.lock().unwrap_or_else(PoisonError::into_inner);
        if index.is_none() {
            *index = Some(OutcomeIndex::read(&self.data)?);
        }
        Ok(index
            .as_ref()
            .is_some_and(|index| index.get(name).is_some()))
    }

    fn exists(&self, path: &Path) -> Result<bool, Error> {
        let exists = files::exists(&*self.disk, path);
        exists.map_err(|error| Error::read(path, error))
    }

    /// Reads the file of a batch. Returns an empty vector, which counts as damaged, for a file that
    /// is too large for a batch.
    fn content(&self, path: &Path) -> Result<Vec<u8>, Error> {
        let read = read_bounded(&*self.disk, path);
        Ok(read
            .map_err(|error| Error::read(path, error))?
            .unwrap_or_default())
    }

    fn lock_held_halves(&self) -> MutexGuard<'_, HashSet<String>> {
        let held_halves = self.held_halves.lock();
        held_halves.unwrap_or_else(PoisonError::into_inner)
    }

    fn state_path(&self, name: &str) -> PathBuf {
        self.data.spool.join(state_name(name))
    }

    fn sync_dir(&self, dir: &Path) -> Result<(), Error> {
        self.disk
            .sync_dir(dir)
            .map_err(|error| Error::new("sync", dir, error))
    }

    /// Removes a file. A missing file is no error.
    fn remove(&self, path: &Path) -> Result<(), Error> {
        match files::remove(&*self.disk, path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                Err(Error::new("delete", path, error))
            }
            _ => Ok(()),
        }
    }

    /// Calls `each` with the name of every pending batch, in no particular order. Other files are
    /// skipped.
    fn each_pending(&self, mut each: impl FnMut(&str)) -> Result<(), Error> {
        for_each_file(&*self.disk, &self.data.spool, |name| {
            if batch::is_batch_name(name) {
                each(name);
            }
        })
    }

    /// Removes a batch and its state file from the spool.
    fn remove_batch(&self, name: &str) -> Result<(), Error> {
        self.remove(&self.data.spool.join(name))?;
        self.remove(&self.state_path(name))
    }

    /// Removes or moves the file of a batch whose outcome is stored, if a crash has interrupted
    /// that. Returns true if the batch is not pending any more.
    fn finish_outcome(&self, name: &str) -> Result<bool, Error> {
        match self.outcome(name)? {
            Some(BatchOutcome::Delivered | BatchOutcome::Split) => self.remove_batch(name)?,
            Some(BatchOutcome::Archived) => {
                let to = self.data.archive.join(name);
                move_file(&*self.disk, &self.data.spool.join(name), &to)?;
            }
            // Remove the file that the batch was moved from. A move between file systems is a copy
            // and a deletion, and a crash in between leaves the file in both directories.
            Some(BatchOutcome::Resent | BatchOutcome::Unarchived) => {
                self.remove(&self.data.failed.join(name))?;
                self.remove(&self.data.failed.join(Reason::file_name(name)))?;
                self.remove(&self.data.archive.join(name))?;
                return Ok(false);
            }
            Some(BatchOutcome::Failed | BatchOutcome::Discarded) | None => {
                if !self.exists(&self.data.failed.join(name))? {
                    return Ok(false);
                }
                self.remove_batch(name)?;
            }
        }
        Ok(true)
    }

    /// Adds a pending batch, unless it is pending already. Returns true if the batch was added.
    /// `again` is true while a consolidation is repeated after a crash: a batch that was added
    /// before the crash, and was delivered, archived or failed since, must not become pending
    /// again.
    pub(crate) fn put(&self, batch: &Batch, again: bool) -> Result<bool, Error> {
        let name = batch.file_name();
        if self.exists(&self.data.spool.join(&name))? || again && self.was_put(&name)? {
            return Ok(false);
        }
        write_batch(&*self.disk, &self.data.spool, &name, &batch.encode())?;
        Ok(true)
    }

    /// Syncs the directory, so that the batches that [`SpoolManager::put`] has written are durable.
    pub(crate) fn flush(&self) -> Result<(), Error> {
        self.sync_dir(&self.data.spool)
    }

    /// Returns the names of at most `max` pending batches that follow `after`, oldest first.
    pub fn pending(&self, after: Option<&str>, max: usize) -> Result<Vec<String>, Error> {
        // The heap never holds more than `max` names, so that memory is bounded.
        let mut names = BinaryHeap::new();
        self.each_pending(|name| {
            if after.is_none_or(|after| name > after) {
                names.push(name.to_owned());
                if names.len() > max {
                    names.pop();
                }
            }
        })?;
        Ok(names.into_sorted_vec())
    }

    /// Finishes splits that a crash interrupted, and removes state files without a batch. Must be
    /// called before a batch is sent: the journal keeps the outcomes of the halves of a split only
    /// for a bounded number of events.
    pub(crate) fn tidy(&self) -> Result<(), Error> {
        let (dir, mut done, mut splitting) = (&self.data.spool, Ok(()), Vec::new());
        for_each_file(&*self.disk, dir, |name| {
            let unhidden = name
                .strip_prefix('.')
                .and_then(|name| name.strip_suffix(".tmp"));
            let is_temporary =
                unhidden.is_some_and(|name| is_state_name(name) || name == PAUSE_FILE);
            // Keep a state file if it is unknown whether its batch exists. Otherwise the attempts
            // at an existing batch could be forgotten, and the batch sent again in another form.
            let has_no_batch = || !self.exists(&dir.join(batch_of(name))).unwrap_or(true);
            let is_orphan = is_state_name(name) && has_no_batch();
            if done.is_ok() && (is_orphan || is_temporary) {
                done = self.remove(&dir.join(name));
            } else if is_state_name(name) {
                let state = self.state(&batch_of(name));
                let state = state.ok().filter(|state| state.splitting);
                splitting.extend(state.map(|state| (batch_of(name), state)));
            }
        })?;
        done?;
        let mut held_halves = HashSet::new();
        for (name, state) in splitting {
            match self.load_for_delivery(&name) {
                Ok(LoadedBatch::Batch(batch)) => match self.split(&batch, &state) {
                    // The disk is too full to finish the split of this batch, so its halves are
                    // held back. A half that is delivered now could be written and delivered again
                    // by a later split.
                    Err(error) if error.is_full() => held_halves.extend(state.halves),
                    split => drop(split?),
                },
                Ok(LoadedBatch::Gone | LoadedBatch::Damaged) => {}
                // The batch cannot be read, so its split cannot be finished, and its halves are
                // held back. The error is not returned, so that the other batches are delivered.
                Err(error) if error.stays_in_place() => held_halves.extend(state.halves),
                Err(error) => return Err(error),
            }
        }
        *self.lock_held_halves() = held_halves;
        Ok(())
    }

    /// Returns the number of pending batches.
    pub fn count(&self) -> Result<u64, Error> {
        let mut count = 0;
        self.each_pending(|_| count += 1)?;
        Ok(count)
    }

    /// Reads and checks a pending batch. A damaged batch moves to `failed/`.
    pub(crate) fn load_for_delivery(&self, name: &str) -> Result<LoadedBatch, Error> {
        let path = self.data.spool.join(name);
        if self.lock_held_halves().contains(name) {
            let reason = "this half of a split batch is held back until the split is finished: the \
                          whole batch cannot be read, or the disk is full";
            return Err(Error::read(&path, io::Error::other(reason)));
        }
        if self.finish_outcome(name)? {
            return Ok(LoadedBatch::Gone);
        }
        let checked = match read_bounded(&*self.disk, &path) {
            Ok(Some(bytes)) => {
                if let Err(BatchDamage {
                    version: Some(found),
                    ..
                }) = Batch::decode(&bytes)
                {
                    return Err(Error::version(&path, found, batch::VERSION));
                }
                check(name, &bytes)
            }
            Ok(None) => Err("the file is longer than a batch can be".to_owned()),
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(LoadedBatch::Gone),
            Err(error) => return Err(Error::read(&path, error)),
        };
        match checked {
            Ok(batch) => Ok(LoadedBatch::Batch(batch)),
            Err(reason) => {
                move_aside(&*self.disk, &path, &self.data.failed, name, &reason)?;
                self.remove(&self.state_path(name))?;
                Ok(LoadedBatch::Damaged)
            }
        }
    }

    /// Returns the delivery state of a batch.
    pub(crate) fn state(&self, name: &str) -> Result<DeliveryState, Error> {
        let path = self.state_path(name);
        let bytes = match read_bounded(&*self.disk, &path) {
            Ok(bytes) => bytes.unwrap_or_default(),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return Ok(DeliveryState::default());
            }
            Err(error) => return Err(Error::read(&path, error)),
        };
        match decode_version::<DeliveryState>(&path, &bytes, state::VERSION) {
            Ok(state) => Ok(state),
            Err(error) if error.is_version() => Err(error),
            Err(_) => {
                let path = path.display();
                tracing::warn!(%path, "damaged state file: the destination may have the batch");
                Ok(DeliveryState::lost())
            }
        }
    }

    /// Stores the delivery state of a batch. Synced when this returns.
    pub(crate) fn set_state(&self, name: &str, state: &DeliveryState) -> Result<(), Error> {
        let dir = &self.data.spool;
        write_atomically(&*self.disk, dir, &state_name(name), &encode(state))?;
        self.sync_dir(dir)
    }

    /// Removes a batch that the destination accepted. `message` is the response.
    pub(crate) fn delivered(&self, batch: &Batch, message: &str) -> Result<(), Error> {
        self.add_event(batch, BatchOutcome::Delivered, message)?;
        self.remove_batch(&batch.file_name())
    }

    /// Replaces a batch by its two halves. A split that is repeated after a crash gives the same
    /// halves. Returns their names, or `None` if the batch cannot be split.
    pub(crate) fn split(
        &self,
        batch: &Batch,
        state: &DeliveryState,
    ) -> Result<Option<[String; 2]>, Error> {
        let Some(halves) = batch.halves() else {
            return Ok(None);
        };
        let name = batch.file_name();
        if !state.splitting {
            let state = DeliveryState {
                splitting: true,
                halves: halves.iter().map(Batch::file_name).collect(),
                ..state.clone()
            };
            self.set_state(&name, &state)?;
        }
        for half in &halves {
            let name = half.file_name();
            // Skip a half that an earlier split wrote before a crash. The half may have been
            // delivered since, and would be delivered again.
            if self.outcome(&name)?.is_none()
                && !self.exists(&self.data.failed.join(&name))?
                && !self.exists(&self.data.spool.join(&name))?
            {
                write_half_batch(&*self.disk, &self.data.spool, &name, &half.encode())?;
            }
        }
        self.flush()?;
        self.add_event(batch, BatchOutcome::Split, "")?;
        self.remove_batch(&name)?;
        Ok(Some(halves.map(|half| half.file_name())))
    }

    /// Moves a batch to `failed/`, with the reason.
    pub(crate) fn fail(
        &self,
        batch: &Batch,
        state: &DeliveryState,
        reason: &str,
    ) -> Result<(), Error> {
        let name = batch.file_name();
        let mut reason = Reason::new(&name, reason, None);
        reason.batch = Some(BatchReason {
            records: batch.records().len() as u64,
            attempts: state.attempts,
            first_attempt: state.first_attempt,
            ambiguous: state.is_unknown(),
        });
        reason.write(&*self.disk, &self.data.failed)?;
        let (from, to) = (self.data.spool.join(&name), self.data.failed.join(&name));
        move_file(&*self.disk, &from, &to)?;
        self.add_event(batch, BatchOutcome::Failed, &reason.why)?;
        self.remove(&self.state_path(&name))
    }

    /// Moves a batch to `archive/`.
    pub(crate) fn archive(&self, batch: &Batch) -> Result<(), Error> {
        let name = batch.file_name();
        self.add_event(batch, BatchOutcome::Archived, "")?;
        move_file(
            &*self.disk,
            &self.data.spool.join(&name),
            &self.data.archive.join(&name),
        )?;
        self.remove(&self.state_path(&name))
    }

    /// Returns the pause of a destination, if there is one.
    pub(crate) fn pause(&self, to: &str) -> Result<Option<Pause>, Error> {
        let file = pause::read(&self.data)?;
        Ok(file.pauses.into_iter().find(|pause| pause.to == to))
    }

    /// Returns the stored last verdict of a destination: it accepted or rejected a batch.
    pub(crate) fn standing(&self, to: &str) -> Result<Standing, Error> {
        Ok(pause::read(&self.data)?.standing(to))
    }

    /// Stores whether the destination last accepted or rejected a batch. Later runs split a
    /// rejected batch at once only if the destination accepted a batch before. Synced when this
    /// returns.
    pub(crate) fn set_standing(&self, to: &str, standing: Standing) -> Result<(), Error> {
        pause::set_standing(&*self.disk, &self.data, to, standing)
    }

    /// Stores the pause of a destination. Synced when this returns.
    pub(crate) fn set_pause(&self, pause: &Pause) -> Result<(), Error> {
        pause::set(&*self.disk, &self.data, pause)
    }

    /// Removes the pause of a destination.
    pub(crate) fn end_pause(&self, to: &str) -> Result<(), Error> {
        pause::end(&*self.disk, &self.data, to)
    }
}

/// Parses a batch, and checks that its file name matches its records.
pub(crate) fn check(name: &str, bytes: &[u8]) -> Result<Batch, String> {
    let batch = Batch::decode(bytes).map_err(|damage| damage.to_string())?;
    if batch.file_name() == name {
        Ok(batch)
    } else {
        Err("the file name does not match the records in the batch".to_owned())
    }
}

pub(crate) fn is_state_name(name: &str) -> bool {
    let stem = name.strip_suffix(".state.json");
    stem.is_some_and(|stem| batch::is_batch_name(&format!("{stem}.json")))
}

/// Returns the file name of the batch of a state file.
pub(crate) fn batch_of(state: &str) -> String {
    format!(
        "{}.json",
        state.strip_suffix(".state.json").unwrap_or(state)
    )
}

pub(crate) fn state_name(batch: &str) -> String {
    format!(
        "{}.state.json",
        batch.strip_suffix(".json").unwrap_or(batch)
    )
}
