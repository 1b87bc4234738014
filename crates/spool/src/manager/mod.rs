//! The batches, wherever they are: waiting, delivered, failed or archived.

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

pub use earlier_batches::EarlierBatch;
pub(crate) use held_outcomes::HeldOutcomes;
#[cfg(all(test, target_os = "linux"))]
pub(crate) use ledger::MAX_EVENTS;
pub(crate) use ledger::{BatchEvent, BatchOutcome, OutcomeIndex, OutcomeSums};
pub use look::{Failed, Waiting};
pub(crate) use pause::{NAME as PAUSE_FILE, check as check_pause};
pub use pause::{Pause, Standing};
pub use retention::{FileTotals, Keep, KeptIn};
pub use state::DeliveryState;

use uuid::Uuid;

use crate::batch::{self, Batch, BatchDamage};
use crate::data_dir::DataDir;
use crate::disk::{Disk, RealDisk};
use crate::error::Error;
use crate::files::{
    self, for_each_file, move_file, read_bounded, write_atomically, write_batch, write_half_batch,
};
use crate::journal::{decode_version, encode};
use crate::quarantine::{BatchReason, Reason, move_aside};
use crate::reserve::Reserve;
use crate::time::Moment;
use ledger::Ledger;

/// What became of a batch that was asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LoadedBatch {
    /// Here it is.
    Batch(Batch),
    /// It is not there any more, or it is done with.
    Gone,
    /// It is damaged, and was set aside.
    Damaged,
}

/// Where batches are kept. Consolidation and delivery know nothing else of it, so that another
/// storage could take the place of files. Only one deliverer uses it at a time.
pub trait BatchStore {
    /// Keeps a batch for delivery, unless it is there. `again`: it may even have been delivered
    /// since it was kept. `true`: it was not there.
    fn put(&self, batch: &Batch, again: bool) -> Result<bool, Error>;
    /// Calls `each` with every batch that was put for a set of entries, whatever became of it. A
    /// damaged one is left out.
    fn earlier_batches(
        &self,
        set: Uuid,
        entries: &[String],
        each: &mut dyn FnMut(EarlierBatch),
    ) -> Result<(), Error>;
    /// Reads a batch, also one that has failed or is archived. `None`: it is not there, or damaged.
    fn find(&self, name: &str) -> Result<Option<Batch>, Error>;
    /// Waits until everything that was put is safe.
    fn flush(&self) -> Result<(), Error>;
    /// The names of batches that wait, oldest first, at most so many, those after a name.
    fn pending(&self, after: Option<&str>, most: usize) -> Result<Vec<String>, Error>;
    /// Finishes the splits that a deliverer had begun when it crashed, and removes the notes that it
    /// left behind. Must come before anything is sent: what became of the halves of a split is
    /// remembered for a bounded number of events.
    fn tidy(&self) -> Result<(), Error>;
    /// How many batches wait.
    fn count(&self) -> Result<u64, Error>;
    /// Reads a batch and checks all that can be checked of it. One that is damaged is set aside.
    fn load_for_delivery(&self, name: &str) -> Result<LoadedBatch, Error>;
    /// How far its delivery has come.
    fn state(&self, name: &str) -> Result<DeliveryState, Error>;
    /// Notes how far its delivery has come. Safe when this returns.
    fn set_state(&self, name: &str, state: &DeliveryState) -> Result<(), Error>;
    /// Its destination has it.
    fn delivered(&self, batch: &Batch, said: &str) -> Result<(), Error>;
    /// Puts two halves in its place, always the same two, and says their names. `None`: it cannot be
    /// split.
    fn split(&self, batch: &Batch, state: &DeliveryState) -> Result<Option<[String; 2]>, Error>;
    /// It cannot be delivered.
    fn fail(&self, batch: &Batch, state: &DeliveryState, reason: &str) -> Result<(), Error>;
    /// It has no destination.
    fn archive(&self, batch: &Batch) -> Result<(), Error>;
    /// Until when nothing is sent to a destination, and why.
    fn pause(&self, to: &str) -> Result<Option<Pause>, Error>;
    /// Notes until when nothing is sent. Safe when this returns.
    fn set_pause(&self, pause: &Pause) -> Result<(), Error>;
    /// Ends the pause of a destination.
    fn end_pause(&self, to: &str) -> Result<(), Error>;
    /// Last verdict of a destination on a batch.
    fn standing(&self, to: &str) -> Result<Standing, Error>;
    /// Notes what a destination last did with a batch. Safe when this returns.
    fn set_standing(&self, to: &str, standing: Standing) -> Result<(), Error>;
}

/// All access to the batches of a data directory.
///
/// ```
/// use spool::{BatchStore, Durability, Options, Record, SpoolManager, Staging, consolidate};
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
    /// Opened by the first who writes to it: the deliverer.
    ledger: Mutex<Option<Ledger>>,
    /// Halves of splits that could not be finished: they are not sent.
    held: Mutex<HashSet<String>>,
    /// Read by the consolidator, if it goes on with what another one had begun.
    index: Mutex<Option<OutcomeIndex>>,
}

impl SpoolManager {
    /// The batches of a data directory. Looking at them changes nothing: a directory that is not
    /// there has none.
    pub fn new(data: impl AsRef<Path>) -> Self {
        Self::on(Arc::new(RealDisk), data.as_ref())
    }

    pub(crate) fn on(disk: Arc<dyn Disk>, data: &Path) -> Self {
        Self {
            data: DataDir::on(Arc::clone(&disk), data),
            disk,
            ledger: Mutex::default(),
            held: Mutex::default(),
            index: Mutex::default(),
        }
    }

    /// Reads a batch that waits and checks all that can be checked of it.
    pub fn load(&self, name: &str) -> Result<Batch, Error> {
        let path = self.data.spool.join(name);
        let bytes = self.content(&path)?;
        check(name, &bytes).map_err(|why| Error::damage(&path, why))
    }

    /// Puts a batch from `failed/` or `archive/` back among those that wait. What is known of its
    /// attempts is kept: one that the destination may have is still never split.
    ///
    /// Whoever calls this must be the only one who delivers: see [`DeliveryLock`](crate::DeliveryLock).
    pub fn resend(&self, name: &str) -> Result<(), Error> {
        let dirs = [&self.data.failed, &self.data.archive];
        let is_there = |dir: &&PathBuf| self.exists(&dir.join(name)).unwrap_or(false);
        let from = dirs.into_iter().find(is_there);
        let Some(dir) = from.filter(|_| batch::is_batch_name(name)) else {
            let path = self.data.failed.join(name);
            let why = "there is no such batch in failed/ or archive/";
            return Err(Error::new("resend", &path, io::Error::other(why)));
        };
        let path = dir.join(name);
        let bytes = self.content(&path)?;
        let batch = check(name, &bytes)
            .map_err(|why| Error::new("resend", &path, io::Error::other(why)))?;
        if self.outcome(name)? == Some(BatchOutcome::Discarded) {
            let why = "it is being deleted to respect a bound";
            return Err(Error::new("resend", &path, io::Error::other(why)));
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
        self.note(&batch, outcome, "")?;
        move_file(&*self.disk, &path, &self.data.spool.join(name))?;
        self.remove(&self.data.failed.join(Reason::file_name(name)))
    }

    /// Forgets what is known of the journal if somebody else has written to it.
    pub(crate) fn refresh(&self) {
        let mut ledger = self.ledger.lock().unwrap_or_else(PoisonError::into_inner);
        if ledger.as_ref().is_some_and(|ledger| !ledger.is_current()) {
            *ledger = None;
        }
    }

    /// Nothing is written for a while. What cannot be kept open for reading is forgotten.
    pub(crate) fn rest(&self) {
        let mut ledger = self.ledger.lock().unwrap_or_else(PoisonError::into_inner);
        if ledger.as_mut().is_some_and(|ledger| ledger.rest().is_err()) {
            *ledger = None;
        }
    }

    /// How many things are in `failed/`.
    pub fn count_failed(&self) -> Result<u64, Error> {
        let mut count = 0;
        for_each_file(&*self.disk, &self.data.failed, |name| {
            count += u64::from(look::is_failed(name));
        })?;
        Ok(count)
    }

    fn lock_ledger(&self) -> Result<MutexGuard<'_, Option<Ledger>>, Error> {
        let mut ledger = self.ledger.lock().unwrap_or_else(PoisonError::into_inner);
        if ledger.as_ref().is_none_or(Ledger::is_left) {
            *ledger = Some(Ledger::open(&self.disk, &self.data)?);
        }
        Ok(ledger)
    }

    fn note(&self, batch: &Batch, outcome: BatchOutcome, said: &str) -> Result<(), Error> {
        let at = Moment::from(std::time::SystemTime::now());
        let event = BatchEvent::new(batch, outcome, at, said);
        let mut ledger = self.lock_ledger()?;
        let Some(ledger) = &mut *ledger else {
            return Ok(());
        };
        let hold = |ledger: &Ledger| {
            HeldOutcomes::add(&*self.disk, &self.data, ledger.index(), batch, &event)
        };
        if !HeldOutcomes::read(&self.data, ledger.index())?.is_empty() {
            // The order of events matters: what is in the reserve follows the journal.
            return hold(ledger);
        }
        match ledger.note(&event) {
            Err(error) if error.is_full() => hold(ledger).map_err(|_| error),
            noted => noted,
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

    /// Writes what the reserve holds about batches to the disk, as far as there is room. Only the
    /// deliverer may do this.
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

    /// Whether a batch was kept before, whatever became of it.
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

    /// The content of a batch; nothing if it is longer than one can be.
    fn content(&self, path: &Path) -> Result<Vec<u8>, Error> {
        let read = read_bounded(&*self.disk, path);
        Ok(read
            .map_err(|error| Error::read(path, error))?
            .unwrap_or_default())
    }

    fn state_path(&self, name: &str) -> PathBuf {
        self.data.spool.join(state_name(name))
    }

    fn sync_dir(&self, dir: &Path) -> Result<(), Error> {
        self.disk
            .sync_dir(dir)
            .map_err(|error| Error::new("sync", dir, error))
    }

    /// Removes a file; one that is gone is no error.
    fn remove(&self, path: &Path) -> Result<(), Error> {
        match files::remove(&*self.disk, path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                Err(Error::new("delete", path, error))
            }
            _ => Ok(()),
        }
    }

    /// What waits, in no order. Files that cannot be batches are none of ours.
    fn each_waiting(&self, mut each: impl FnMut(&str)) -> Result<(), Error> {
        for_each_file(&*self.disk, &self.data.spool, |name| {
            if batch::is_batch_name(name) {
                each(name);
            }
        })
    }

    /// Forgets a batch that left the spool.
    fn forget(&self, name: &str) -> Result<(), Error> {
        self.remove(&self.data.spool.join(name))?;
        self.remove(&self.state_path(name))
    }

    /// Does what a crash left undone for a batch that is done with. `true`: it is.
    fn settle(&self, name: &str) -> Result<bool, Error> {
        match self.outcome(name)? {
            Some(BatchOutcome::Delivered | BatchOutcome::Split) => self.forget(name)?,
            Some(BatchOutcome::Archived) => {
                let to = self.data.archive.join(name);
                move_file(&*self.disk, &self.data.spool.join(name), &to)?;
            }
            // Between file systems a move may have come to an end but for the old file.
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
                self.forget(name)?;
            }
        }
        Ok(true)
    }
}

impl BatchStore for SpoolManager {
    fn put(&self, batch: &Batch, again: bool) -> Result<bool, Error> {
        let name = batch.file_name();
        if self.exists(&self.data.spool.join(&name))? || again && self.was_put(&name)? {
            return Ok(false);
        }
        write_batch(&*self.disk, &self.data.spool, &name, &batch.encode())?;
        Ok(true)
    }

    fn earlier_batches(
        &self,
        set: Uuid,
        entries: &[String],
        each: &mut dyn FnMut(EarlierBatch),
    ) -> Result<(), Error> {
        self.each_earlier_batch(set, entries, each)
    }

    fn find(&self, name: &str) -> Result<Option<Batch>, Error> {
        self.find_batch(name)
    }

    fn flush(&self) -> Result<(), Error> {
        self.sync_dir(&self.data.spool)
    }

    fn pending(&self, after: Option<&str>, most: usize) -> Result<Vec<String>, Error> {
        // The smallest names, however many there are.
        let mut names = BinaryHeap::new();
        self.each_waiting(|name| {
            if after.is_none_or(|after| name > after) {
                names.push(name.to_owned());
                if names.len() > most {
                    names.pop();
                }
            }
        })?;
        Ok(names.into_sorted_vec())
    }

    fn tidy(&self) -> Result<(), Error> {
        let (dir, mut done, mut splitting) = (&self.data.spool, Ok(()), Vec::new());
        for_each_file(&*self.disk, dir, |name| {
            // Notes about a batch that is gone, or half of a note.
            let half = name
                .strip_prefix('.')
                .and_then(|name| name.strip_suffix(".tmp"));
            let is_half = half.is_some_and(|name| is_state_name(name) || name == PAUSE_FILE);
            // A note is kept if it is unknown whether its batch exists.
            let is_gone = || !self.exists(&dir.join(batch_of(name))).unwrap_or(true);
            let is_orphan = is_state_name(name) && is_gone();
            if done.is_ok() && (is_orphan || is_half) {
                done = self.remove(&dir.join(name));
            } else if is_state_name(name) {
                let state = self.state(&batch_of(name));
                let state = state.ok().filter(|state| state.splitting);
                splitting.extend(state.map(|state| (batch_of(name), state)));
            }
        })?;
        done?;
        let mut held = HashSet::new();
        for (name, state) in splitting {
            match self.load_for_delivery(&name) {
                Ok(LoadedBatch::Batch(batch)) => match self.split(&batch, &state) {
                    // There is no room for its halves.
                    Err(error) if error.is_full() => held.extend(state.halves),
                    split => drop(split?),
                },
                Ok(LoadedBatch::Gone | LoadedBatch::Damaged) => {}
                // The halves wait with it, and the other batches do not.
                Err(error) if error.stays_in_place() => held.extend(state.halves),
                Err(error) => return Err(error),
            }
        }
        *self.held.lock().unwrap_or_else(PoisonError::into_inner) = held;
        Ok(())
    }

    fn count(&self) -> Result<u64, Error> {
        let mut count = 0;
        self.each_waiting(|_| count += 1)?;
        Ok(count)
    }

    fn load_for_delivery(&self, name: &str) -> Result<LoadedBatch, Error> {
        let path = self.data.spool.join(name);
        let held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        if held.contains(name) {
            let why = "the batch that it is a half of cannot be read";
            return Err(Error::read(&path, io::Error::other(why)));
        }
        drop(held);
        if self.settle(name)? {
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
            Ok(None) => Err("it is longer than a batch can be".to_owned()),
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(LoadedBatch::Gone),
            Err(error) => return Err(Error::read(&path, error)),
        };
        match checked {
            Ok(batch) => Ok(LoadedBatch::Batch(batch)),
            Err(why) => {
                move_aside(&*self.disk, &path, &self.data.failed, name, &why)?;
                self.remove(&self.state_path(name))?;
                Ok(LoadedBatch::Damaged)
            }
        }
    }

    fn state(&self, name: &str) -> Result<DeliveryState, Error> {
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
                tracing::warn!(path = %path.display(), "not readable: its batch is taken for tried");
                Ok(DeliveryState::lost())
            }
        }
    }

    fn set_state(&self, name: &str, state: &DeliveryState) -> Result<(), Error> {
        let dir = &self.data.spool;
        write_atomically(&*self.disk, dir, &state_name(name), &encode(state))?;
        self.sync_dir(dir)
    }

    fn delivered(&self, batch: &Batch, said: &str) -> Result<(), Error> {
        self.note(batch, BatchOutcome::Delivered, said)?;
        self.forget(&batch.file_name())
    }

    fn split(&self, batch: &Batch, state: &DeliveryState) -> Result<Option<[String; 2]>, Error> {
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
            // A crash may have come after one of them was put, or done with.
            if self.outcome(&name)?.is_none()
                && !self.exists(&self.data.failed.join(&name))?
                && !self.exists(&self.data.spool.join(&name))?
            {
                write_half_batch(&*self.disk, &self.data.spool, &name, &half.encode())?;
            }
        }
        self.flush()?;
        self.note(batch, BatchOutcome::Split, "")?;
        self.forget(&name)?;
        Ok(Some(halves.map(|half| half.file_name())))
    }

    fn fail(&self, batch: &Batch, state: &DeliveryState, reason: &str) -> Result<(), Error> {
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
        self.note(batch, BatchOutcome::Failed, &reason.why)?;
        self.remove(&self.state_path(&name))
    }

    fn archive(&self, batch: &Batch) -> Result<(), Error> {
        let name = batch.file_name();
        self.note(batch, BatchOutcome::Archived, "")?;
        move_file(
            &*self.disk,
            &self.data.spool.join(&name),
            &self.data.archive.join(&name),
        )?;
        self.remove(&self.state_path(&name))
    }

    fn pause(&self, to: &str) -> Result<Option<Pause>, Error> {
        let noted = pause::read(&self.data)?;
        Ok(noted.pauses.into_iter().find(|pause| pause.to == to))
    }

    fn standing(&self, to: &str) -> Result<Standing, Error> {
        Ok(pause::read(&self.data)?.standing(to))
    }

    fn set_standing(&self, to: &str, standing: Standing) -> Result<(), Error> {
        pause::set_standing(&*self.disk, &self.data, to, standing)
    }

    fn set_pause(&self, pause: &Pause) -> Result<(), Error> {
        pause::set(&*self.disk, &self.data, pause)
    }

    fn end_pause(&self, to: &str) -> Result<(), Error> {
        pause::end(&*self.disk, &self.data, to)
    }
}

/// Reads a batch, and checks that it is the one its name says.
pub(crate) fn check(name: &str, bytes: &[u8]) -> Result<Batch, String> {
    let batch = Batch::decode(bytes).map_err(|damage| damage.to_string())?;
    if batch.file_name() == name {
        Ok(batch)
    } else {
        Err("its name is not that of its records".to_owned())
    }
}

/// Whether a file says how far the delivery of a batch has come.
pub(crate) fn is_state_name(name: &str) -> bool {
    let stem = name.strip_suffix(".state.json");
    stem.is_some_and(|stem| batch::is_batch_name(&format!("{stem}.json")))
}

/// The batch that such a file is about.
pub(crate) fn batch_of(state: &str) -> String {
    format!(
        "{}.json",
        state.strip_suffix(".state.json").unwrap_or(state)
    )
}

/// The file beside a batch that says how far its delivery has come.
pub(crate) fn state_name(batch: &str) -> String {
    format!(
        "{}.state.json",
        batch.strip_suffix(".json").unwrap_or(batch)
    )
}
