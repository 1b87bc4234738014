//! One consolidator at a time.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use serde_json::Value;
use tenure::{Key, ReadLock, Store, Tenure};

use crate::disk::{Disk, RealDisk};
use crate::entry::EntryName;
use crate::error::{Error, is_full};
use crate::files;
use crate::snapshot::Snapshot;

const FILE: &str = ".consolidation.lock";
const POD_NAME: &str = "pod_name";
const CONSUMED: &str = "consumed_ids";
/// For a set of which nobody said how large its batches are.
const ONE_BY_ONE: usize = 1;

/// Sole ownership of a staging directory.
///
/// Its record names the entries that are being consolidated. If the owner crashes, the next one
/// takes the record over and finishes that same set before it begins another.
///
/// Dropping it lets go of the lock alone: file and record stay, as after a crash.
///
/// ```
/// use spool::StagingLock;
///
/// let staging = tempfile::tempdir()?;
/// let lock = StagingLock::acquire(staging.path(), "pod-1", &[])?;
/// let refused = StagingLock::acquire(staging.path(), "pod-2", &[]).unwrap_err();
/// assert!(refused.to_string().contains("in use by pod-1, pid "));
/// lock.release_only()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
#[must_use = "the directory is let go as soon as the lock is dropped"]
pub struct StagingLock {
    tenure: Option<Tenure>,
    disk: Arc<dyn Disk>,
    staging: PathBuf,
    path: PathBuf,
    record: LockRecord,
    set: Option<Snapshot>,
    /// A set was begun, and it is not known which.
    has_lost_snapshot: bool,
}

/// What the owner of a staging directory says about itself.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct LockRecord {
    /// Its process.
    pub pid: u32,
    /// Which of several machines or pods it is.
    pub pod_name: String,
    /// When it took the directory.
    pub started_at: Option<SystemTime>,
    /// The file names of the entries that are being consolidated.
    pub consumed_ids: Vec<String>,
}

/// Why a staging directory could not be owned.
#[derive(Debug)]
#[non_exhaustive]
pub enum LockError {
    /// Somebody else consolidates it. Nothing was changed.
    #[non_exhaustive]
    InUse {
        /// Its process, if it is proven.
        pid: Option<u32>,
        /// Its pod, if it says so.
        pod_name: Option<String>,
    },
    /// The lock could not be taken for another reason.
    Lock(tenure::Error),
    /// An entry, or the lock's record, could not be read or written.
    Disk(Error),
}

impl StagingLock {
    /// Owns a staging directory, or says who does. `consumed_ids` are the entries that will be
    /// consolidated, if they are known already. If a crashed owner had begun a set, that set is in
    /// the record instead.
    pub fn acquire(
        staging: &Path,
        pod_name: &str,
        consumed_ids: &[String],
    ) -> Result<Self, LockError> {
        let disk = Arc::new(RealDisk);
        Self::hold(disk, staging, pod_name, false)?.begin(consumed_ids)
    }

    /// The same for a consolidator, which must be able to own the directory on a full disk: the file is
    /// kept when the lock is released.
    pub(crate) fn acquire_to_consolidate(
        disk: Arc<dyn Disk>,
        staging: &Path,
        pod_name: &str,
    ) -> Result<Self, LockError> {
        Self::hold(disk, staging, pod_name, true)?.begin(&[])
    }

    fn begin(mut self, consumed_ids: &[String]) -> Result<Self, LockError> {
        let lock = &mut self;
        let staging = &lock.staging;
        lock.set = match Snapshot::read(&*lock.disk, staging) {
            // Nothing can be told from it: what is staged is a new set.
            Err(error) if error.is_damage() => {
                tracing::warn!(%error, "a set that was begun is put out of the way");
                let aside = error.path().with_extension("damaged");
                files::rename(&*lock.disk, error.path(), &aside)
                    .map_err(|failed| LockError::Disk(Error::new("rename", &aside, failed)))?;
                lock.has_lost_snapshot = true;
                None
            }
            set => set.map_err(LockError::Disk)?,
        };
        if let Some(set) = &lock.set {
            // Its writer may have ended before its name was on the disk.
            lock.disk
                .sync_dir(staging)
                .map_err(|error| LockError::Disk(Error::new("sync", staging, error)))?;
            // The set is what counts; the record repeats it for people.
            lock.record.consumed_ids.clone_from(&set.entries);
        } else if !lock.record.consumed_ids.is_empty() {
            // The lock record alone names a set. Entries that are gone were consolidated: their owner ended
            // after it deleted the set and before it updated its lock record.
            let mut names = lock.record.consumed_ids.clone();
            names.retain(|name| lock.disk.exists(&staging.join(name)).unwrap_or(true));
            if names.is_empty() {
                lock.tell(names)?;
            } else {
                lock.freeze(names, ONE_BY_ONE)?;
            }
        } else if !consumed_ids.is_empty() {
            lock.freeze(Vec::from(consumed_ids), ONE_BY_ONE)?;
        }
        Ok(self)
    }

    /// Takes the lock alone, and changes nothing of what somebody may have begun.
    fn hold(
        disk: Arc<dyn Disk>,
        staging: &Path,
        pod_name: &str,
        keep_file: bool,
    ) -> Result<Self, LockError> {
        let path = staging.join(FILE);
        let key = Key::file(&path).map_err(LockError::Lock)?;
        let tenure = Store::default()
            .claim(&key)
            .verb("consolidate")
            .field(POD_NAME, pod_name)
            .field(CONSUMED, Vec::<String>::new())
            .inherit(CONSUMED)
            .keep_file(keep_file)
            .try_acquire()
            .map_err(refused)?;
        Ok(Self {
            record: LockRecord::new(&tenure),
            tenure: Some(tenure),
            disk,
            staging: staging.to_owned(),
            path,
            set: None,
            has_lost_snapshot: false,
        })
    }

    /// Keeps consolidators out while the directory is read. It creates and writes nothing, also if
    /// this process is killed. `None`: there is no lock file, and no consolidator is kept out.
    pub(crate) fn read_lock(staging: &Path) -> Result<Option<ReadLock>, LockError> {
        let key = Key::file(staging.join(FILE)).map_err(LockError::Lock)?;
        Store::default().read_lock(&key).map_err(refused)
    }

    /// What others read about this owner.
    pub fn record(&self) -> &LockRecord {
        &self.record
    }

    /// The lock file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The set that is being consolidated, if there is one.
    pub(crate) fn snapshot(&self) -> Option<&Snapshot> {
        self.set.as_ref()
    }

    /// True if the set that was begun is damaged.
    pub(crate) fn has_lost_snapshot(&self) -> bool {
        self.has_lost_snapshot
    }

    /// Fixes what is consolidated, and how. On the disk when this returns.
    pub(crate) fn freeze(
        &mut self,
        names: Vec<String>,
        batch_size: usize,
    ) -> Result<(), LockError> {
        let set = Snapshot::new(names.clone(), batch_size);
        set.begin(&*self.disk, &self.staging)
            .map_err(LockError::Disk)?;
        self.set = Some(set);
        self.tell(names)
    }

    /// Ends a set of which nothing has come yet: its entries are for the next one.
    pub(crate) fn abandon_snapshot(&mut self) -> Result<(), LockError> {
        Snapshot::end(&*self.disk, &self.staging).map_err(LockError::Disk)?;
        self.set = None;
        self.tell(Vec::new())
    }

    /// Leaves entries of the set where they are. On the disk when this returns.
    pub(crate) fn exclude(&mut self, entries: Vec<String>) -> Result<(), LockError> {
        match &mut self.set {
            Some(set) => set
                .exclude(&*self.disk, &self.staging, entries)
                .map_err(LockError::Disk),
            None => Ok(()),
        }
    }

    /// Notes that all batches are on the disk. On the disk when this returns.
    pub(crate) fn mark_written(&mut self) -> Result<(), LockError> {
        match &mut self.set {
            Some(set) => set
                .mark_written(&*self.disk, &self.staging)
                .map_err(LockError::Disk),
            None => Ok(()),
        }
    }

    /// The reserve notes that all batches are on the disk.
    pub(crate) fn note_written_in_reserve(&mut self) {
        if let Some(set) = &mut self.set {
            set.is_written = true;
        }
    }

    /// Deletes exactly the consumed entries. Missing ones are no error; if one cannot be deleted,
    /// the record stays as it is, and the next owner goes on.
    pub(crate) fn clean_up(&mut self) -> Result<(), LockError> {
        let Some(set) = self.set.clone() else {
            return Ok(());
        };
        if !set.is_written {
            // Half of the set must not be taken for the whole of it after a crash.
            self.mark_written()?;
        }
        for name in set.consumed() {
            self.remove(name)?;
        }
        self.disk
            .sync_dir(&self.staging)
            .map_err(|error| LockError::Disk(Error::new("sync", &self.staging, error)))?;
        // Only now: a name that came back with the power would otherwise be taken for a new entry.
        Snapshot::end(&*self.disk, &self.staging).map_err(LockError::Disk)?;
        self.set = None;
        self.tell(Vec::new())
    }

    fn remove(&self, name: &str) -> Result<(), LockError> {
        let path = self.staging.join(name);
        match self.disk.remove(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                Err(LockError::Disk(Error::new("delete", &path, error)))
            }
            _ => Ok(()),
        }
    }

    /// Success: deletes the consumed entries and the lock.
    pub fn release_with_cleanup(mut self) -> Result<(), LockError> {
        self.clean_up()?;
        self.release()
    }

    /// Failure: removes the lock and leaves the entries. The next owner begins anew.
    ///
    /// Once batches were written from the set this is wrong: drop the lock instead, so that the
    /// next owner goes on with the same set.
    pub fn release_only(mut self) -> Result<(), LockError> {
        self.release()
    }

    fn release(&mut self) -> Result<(), LockError> {
        Snapshot::end(&*self.disk, &self.staging).map_err(LockError::Disk)?;
        self.about_to_write()?;
        match self.tenure.take() {
            Some(tenure) => tenure.release().map_err(LockError::Lock),
            None => Ok(()),
        }
    }

    fn about_to_write(&self) -> Result<(), LockError> {
        self.disk
            .before_record()
            .map_err(|error| LockError::Disk(Error::new("write", &self.path, error)))
    }

    /// Says in the record what is consolidated.
    fn tell(&mut self, names: Vec<String>) -> Result<(), LockError> {
        self.about_to_write()?;
        if let Some(tenure) = &mut self.tenure {
            match tenure.set_field(CONSUMED, names).map_err(LockError::Lock) {
                // The set counts; the record is for people.
                Err(error) if error.is_full() => tracing::debug!(%error, "lock record not updated"),
                told => told?,
            }
            self.record = LockRecord::new(tenure);
        }
        Ok(())
    }
}

impl Drop for StagingLock {
    fn drop(&mut self) {
        if let Some(tenure) = self.tenure.take()
            && let Err(error) = tenure.leave()
        {
            tracing::warn!(%error, "letting go of a staging directory");
        }
    }
}

impl LockRecord {
    fn new(tenure: &Tenure) -> Self {
        let record = tenure.record();
        let names = record.field(CONSUMED).and_then(Value::as_array);
        Self {
            pid: record.pid(),
            pod_name: text(record.field(POD_NAME)).unwrap_or_default(),
            started_at: record.started_at(),
            consumed_ids: names
                .into_iter()
                .flatten()
                .filter_map(|name| text(Some(name)))
                // Whatever a record says: nothing but entries is ever read or deleted.
                .filter(|name| EntryName::parse(name.as_ref()).is_some())
                .collect(),
        }
    }
}

fn text(value: Option<&Value>) -> Option<String> {
    value?.as_str().map(str::to_owned)
}

fn refused(error: tenure::Error) -> LockError {
    match error.holder() {
        Some(holder) => LockError::InUse {
            pid: holder.pid(),
            pod_name: holder
                .record()
                .and_then(|record| text(record.field(POD_NAME))),
        },
        None => LockError::Lock(error),
    }
}

impl LockError {
    /// The disk, or the user's share of it, is full.
    pub fn is_full(&self) -> bool {
        match self {
            Self::InUse { .. } => false,
            Self::Lock(error) => error.io_error().is_some_and(is_full),
            Self::Disk(error) => error.is_full(),
        }
    }
}

impl fmt::Display for LockError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::InUse { pid, pod_name } => {
                let pod = pod_name.as_deref().unwrap_or("an unknown pod");
                match pid {
                    Some(pid) => write!(f, "the staging directory is in use by {pod}, pid {pid}"),
                    None => write!(f, "the staging directory is in use by {pod}"),
                }
            }
            Self::Lock(error) => error.fmt(f),
            Self::Disk(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for LockError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::InUse { .. } => None,
            Self::Lock(error) => Some(error),
            Self::Disk(error) => Some(error),
        }
    }
}
