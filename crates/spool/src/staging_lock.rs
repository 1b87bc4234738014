//! Lock of a staging directory: one consolidator at a time.

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
/// Batch size of a snapshot that is made from entry names alone, which come from a lock record or
/// from the caller of [`StagingLock::acquire`]. The size that the consolidator would use is unknown
/// there, so that each record gets a batch of its own.
const UNKNOWN_BATCH_SIZE: usize = 1;

/// Fate of the lock file when the lock is released.
#[derive(Clone, Copy, PartialEq, Eq)]
enum OnRelease {
    RemoveFile,
    /// The lock file stays for the next owner, because a full disk has no space for a new one.
    KeepFile,
}

/// Exclusive ownership of a staging directory.
///
/// The lock record names the entries that are being consolidated. If the owner crashes, the next
/// owner inherits the lock record and finishes that snapshot before it begins another.
///
/// Dropping the value releases only the kernel's lock: lock file and lock record stay, as after a
/// crash.
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
#[must_use = "dropping the lock releases the staging directory"]
pub struct StagingLock {
    tenure: Option<Tenure>,
    disk: Arc<dyn Disk>,
    staging: PathBuf,
    path: PathBuf,
    record: LockRecord,
    snapshot: Option<Snapshot>,
    /// True if a crashed owner had begun a snapshot and the snapshot file is damaged. The next
    /// snapshot must then reuse the batches that the crashed owner may have written.
    has_lost_snapshot: bool,
}

/// Description of the owner of a staging directory, readable by other processes.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct LockRecord {
    /// Process id of the owner.
    pub pid: u32,
    /// Name of the owner's machine or pod.
    pub pod_name: String,
    /// Time at which the owner acquired the lock.
    pub started_at: Option<SystemTime>,
    /// File names of the entries that are being consolidated.
    pub consumed_ids: Vec<String>,
}

/// Error of acquiring or using a [`StagingLock`].
#[derive(Debug)]
#[non_exhaustive]
pub enum LockError {
    /// Another process owns the staging directory. Nothing was changed.
    #[non_exhaustive]
    InUse {
        /// Process id of the owner, if it is proven.
        pid: Option<u32>,
        /// Pod of the owner, if its lock record names one.
        pod_name: Option<String>,
    },
    /// The lock could not be acquired, and not because another process has it.
    Lock(tenure::Error),
    /// An entry, the snapshot or the lock record could not be read or written.
    Disk(Error),
}

impl StagingLock {
    /// Acquires the lock of a staging directory. `consumed_ids` are the entries that will be
    /// consolidated, if they are known already. If a crashed owner had begun a snapshot, its
    /// entries are in the lock record instead.
    pub fn acquire(
        staging: &Path,
        pod_name: &str,
        consumed_ids: &[String],
    ) -> Result<Self, LockError> {
        let disk = Arc::new(RealDisk);
        Self::lock(disk, staging, pod_name, OnRelease::RemoveFile)?
            .resume_or_begin_snapshot(consumed_ids)
    }

    /// Acquires the lock for a consolidator. The lock file is kept on release, because a
    /// consolidator must be able to acquire the lock on a full disk.
    pub(crate) fn acquire_to_consolidate(
        disk: Arc<dyn Disk>,
        staging: &Path,
        pod_name: &str,
    ) -> Result<Self, LockError> {
        Self::lock(disk, staging, pod_name, OnRelease::KeepFile)?.resume_or_begin_snapshot(&[])
    }

    /// Continues with the snapshot of a crashed owner, or begins one with these entries if there
    /// are any.
    fn resume_or_begin_snapshot(mut self, consumed_ids: &[String]) -> Result<Self, LockError> {
        let lock = &mut self;
        let staging = &lock.staging;
        lock.snapshot = match Snapshot::read(&*lock.disk, staging) {
            // The entries of a damaged snapshot are unknown. Move its file aside, so that a new
            // snapshot can begin.
            Err(error) if error.is_damage() => {
                tracing::warn!(%error, "damaged snapshot file renamed to *.damaged; its entries go into a new snapshot");
                let aside = error.path().with_extension("damaged");
                files::rename(&*lock.disk, error.path(), &aside)
                    .map_err(|failed| LockError::Disk(Error::new("rename", &aside, failed)))?;
                lock.has_lost_snapshot = true;
                None
            }
            snapshot => snapshot.map_err(LockError::Disk)?,
        };
        if let Some(snapshot) = &lock.snapshot {
            // Sync the directory: the process that wrote the snapshot file may have died before it
            // did so. Otherwise a power failure could lose the snapshot after some of its batches
            // are written.
            lock.disk
                .sync_dir(staging)
                .map_err(|error| LockError::Disk(Error::new("sync", staging, error)))?;
            // The snapshot file defines the entries. The lock record repeats their names for
            // people.
            lock.record.consumed_ids.clone_from(&snapshot.entries);
        } else if !lock.record.consumed_ids.is_empty() {
            // Without a snapshot file, only the lock record names entries. Leave out entries that
            // are missing: they were consolidated by an owner that ended after it deleted the
            // snapshot and before it updated its lock record.
            let mut names = lock.record.consumed_ids.clone();
            names.retain(|name| lock.disk.exists(&staging.join(name)).unwrap_or(true));
            if names.is_empty() {
                lock.update_record(names)?;
            } else {
                lock.freeze(names, UNKNOWN_BATCH_SIZE)?;
            }
        } else if !consumed_ids.is_empty() {
            lock.freeze(Vec::from(consumed_ids), UNKNOWN_BATCH_SIZE)?;
        }
        Ok(self)
    }

    /// Acquires the lock without reading or changing the snapshot.
    fn lock(
        disk: Arc<dyn Disk>,
        staging: &Path,
        pod_name: &str,
        on_release: OnRelease,
    ) -> Result<Self, LockError> {
        let path = staging.join(FILE);
        let key = Key::file(&path).map_err(LockError::Lock)?;
        let tenure = Store::default()
            .claim(&key)
            .verb("consolidate")
            .field(POD_NAME, pod_name)
            .field(CONSUMED, Vec::<String>::new())
            .inherit(CONSUMED)
            .keep_file(on_release == OnRelease::KeepFile)
            .try_acquire()
            .map_err(lock_error)?;
        Ok(Self {
            record: LockRecord::new(&tenure),
            tenure: Some(tenure),
            disk,
            staging: staging.to_owned(),
            path,
            snapshot: None,
            has_lost_snapshot: false,
        })
    }

    /// Excludes consolidators while the directory is read. Creates and writes no file. Returns
    /// `None` if there is no lock file; consolidators are not excluded then.
    pub(crate) fn read_lock(staging: &Path) -> Result<Option<ReadLock>, LockError> {
        let key = Key::file(staging.join(FILE)).map_err(LockError::Lock)?;
        Store::default().read_lock(&key).map_err(lock_error)
    }

    /// Description of this owner that the lock file shows to other processes.
    pub fn record(&self) -> &LockRecord {
        &self.record
    }

    /// Path of the lock file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Snapshot that is being consolidated, if there is one.
    pub(crate) fn snapshot(&self) -> Option<&Snapshot> {
        self.snapshot.as_ref()
    }

    /// True if a crashed owner had begun a snapshot and its file is damaged.
    pub(crate) fn has_lost_snapshot(&self) -> bool {
        self.has_lost_snapshot
    }

    /// Begins a snapshot of these entries with this batch size. Synced when this returns.
    pub(crate) fn freeze(
        &mut self,
        names: Vec<String>,
        batch_size: usize,
    ) -> Result<(), LockError> {
        let snapshot = Snapshot::new(names.clone(), batch_size);
        snapshot
            .begin(&*self.disk, &self.staging)
            .map_err(LockError::Disk)?;
        self.snapshot = Some(snapshot);
        self.update_record(names)
    }

    /// Ends a snapshot of which no batch was written. Its entries go into the next snapshot.
    pub(crate) fn abandon_snapshot(&mut self) -> Result<(), LockError> {
        Snapshot::end(&*self.disk, &self.staging).map_err(LockError::Disk)?;
        self.snapshot = None;
        self.update_record(Vec::new())
    }

    /// Excludes entries from the snapshot; their files stay. Synced when this returns.
    pub(crate) fn exclude(&mut self, entries: Vec<String>) -> Result<(), LockError> {
        match &mut self.snapshot {
            Some(snapshot) => snapshot
                .exclude(&*self.disk, &self.staging, entries)
                .map_err(LockError::Disk),
            None => Ok(()),
        }
    }

    /// Marks all batches of the snapshot as written. Synced when this returns.
    pub(crate) fn mark_written(&mut self) -> Result<(), LockError> {
        match &mut self.snapshot {
            Some(snapshot) => snapshot
                .mark_written(&*self.disk, &self.staging)
                .map_err(LockError::Disk),
            None => Ok(()),
        }
    }

    /// Marks all batches of the snapshot as written, in memory only. On a full disk the reserve
    /// stores that mark, which is synced already.
    pub(crate) fn note_written_in_reserve(&mut self) {
        if let Some(snapshot) = &mut self.snapshot {
            snapshot.is_written = true;
        }
    }

    /// Deletes exactly the consumed entries. Missing entries are no error. If an entry cannot be
    /// deleted, snapshot and lock record stay, and the next owner continues.
    pub(crate) fn clean_up(&mut self) -> Result<(), LockError> {
        let Some(snapshot) = self.snapshot.clone() else {
            return Ok(());
        };
        if !snapshot.is_written {
            // Mark the snapshot as written, by renaming its file, before an entry is deleted.
            // Otherwise, after a crash during the deletion, the remaining entries would be
            // consolidated again, into different batches.
            self.mark_written()?;
        }
        for name in snapshot.consumed() {
            self.remove(name)?;
        }
        self.disk
            .sync_dir(&self.staging)
            .map_err(|error| LockError::Disk(Error::new("sync", &self.staging, error)))?;
        // The snapshot file is deleted only after the deletion of its entries is synced. Otherwise
        // an entry that reappears after a power failure would be consolidated again.
        Snapshot::end(&*self.disk, &self.staging).map_err(LockError::Disk)?;
        self.snapshot = None;
        self.update_record(Vec::new())
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

    /// Deletes the consumed entries and releases the lock. Call this after success.
    pub fn release_with_cleanup(mut self) -> Result<(), LockError> {
        self.clean_up()?;
        self.release()
    }

    /// Releases the lock and leaves the entries. The next owner begins a new snapshot.
    ///
    /// Call this only if no batch of the snapshot was written. Otherwise drop the lock, so that the
    /// next owner continues with the same snapshot.
    pub fn release_only(mut self) -> Result<(), LockError> {
        self.release()
    }

    fn release(&mut self) -> Result<(), LockError> {
        Snapshot::end(&*self.disk, &self.staging).map_err(LockError::Disk)?;
        self.before_record_write()?;
        match self.tenure.take() {
            Some(tenure) => tenure.release().map_err(LockError::Lock),
            None => Ok(()),
        }
    }

    fn before_record_write(&self) -> Result<(), LockError> {
        self.disk
            .before_record()
            .map_err(|error| LockError::Disk(Error::new("write", &self.path, error)))
    }

    /// Writes the names of the entries that are being consolidated to the lock record.
    fn update_record(&mut self, names: Vec<String>) -> Result<(), LockError> {
        self.before_record_write()?;
        if let Some(tenure) = &mut self.tenure {
            match tenure.set_field(CONSUMED, names).map_err(LockError::Lock) {
                // Continue on a full disk: recovery uses the snapshot file, and the lock record
                // only informs people.
                Err(error) if error.is_full() => {
                    tracing::debug!(%error, "disk full: the lock record does not name the entries that are being consolidated");
                }
                updated => updated?,
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
            tracing::warn!(%error, "cannot release the lock of the staging directory");
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
                // Other processes can write the lock record. Only names of entries are accepted, so
                // that no other file is read or deleted.
                .filter(|name| EntryName::parse(name.as_ref()).is_some())
                .collect(),
        }
    }
}

fn text(value: Option<&Value>) -> Option<String> {
    value?.as_str().map(str::to_owned)
}

fn lock_error(error: tenure::Error) -> LockError {
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
    /// True if the disk is full or the user's quota is exhausted.
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
