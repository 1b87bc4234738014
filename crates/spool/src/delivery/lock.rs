//! Lock of a data directory: one deliverer at a time.

use std::fmt;
use std::path::Path;
use std::time::{Duration, Instant};

use tenure::{Key, ReadLock, Store, Tenure};

use crate::cancel::Cancel;
use crate::data_dir::DataDir;
use crate::error::{Error, is_full};
use crate::staging_lock::LockError;

const FILE: &str = ".delivery.lock";
/// Verb in lock records of earlier versions whose owner only reads the data directory. A run waits
/// for such an owner instead of failing at once.
const READ_VERB: &str = "verify";
/// Maximum time for which a run waits for readers of the data directory. After it, the run fails
/// with [`RunError::Busy`].
const READER_TIMEOUT: Duration = Duration::from_secs(30);

/// Exclusive right to deliver from a data directory and to change the state of its batches.
#[derive(Debug)]
#[must_use = "dropping the delivery lock allows other processes to deliver"]
pub struct DeliveryLock {
    _tenure: Tenure,
}

/// Error of a run.
#[derive(Debug)]
#[non_exhaustive]
pub enum RunError {
    /// Another process owns the delivery lock or the staging lock of this data directory, or reads
    /// the directory. The operation that needed the lock changed nothing.
    #[non_exhaustive]
    Busy {
        /// Process id of the process that uses the data directory, for messages; `None` unless the
        /// id is proven.
        pid: Option<u32>,
        /// True if the process only reads the data directory. A run waits for such a process for a
        /// limited time before the run fails.
        is_reading: bool,
    },
    /// The data directory delivers to another destination. Nothing was changed.
    #[non_exhaustive]
    OtherDestination {
        /// Requested destination, or `None` for archiving.
        requested: Option<String>,
        /// Destination in `destination.json` of the data directory. Its records must not go to
        /// another destination.
        stored: String,
    },
    /// The [`Fence`](crate::Fence) of the run was lost. Nothing was changed since then, and the next
    /// run continues.
    Fenced,
    /// The delivery lock or the staging lock could not be acquired because of an error, such as an
    /// I/O error, and not because another process owns the lock.
    Lock(tenure::Error),
    /// A file could not be read or written.
    Disk(Error),
}

impl DeliveryLock {
    /// Acquires the lock. Fails with [`RunError::Busy`] if another process owns it.
    pub fn acquire(data: &Path) -> Result<Self, RunError> {
        let data = DataDir::new(data);
        data.make(&crate::disk::RealDisk).map_err(RunError::Disk)?;
        Self::acquire_for(&data, "deliver")
    }

    /// Acquires the lock. Waits for processes that only read the data directory.
    pub(crate) fn acquire_after_readers(data: &Path, cancel: &Cancel) -> Result<Self, RunError> {
        let start = Instant::now();
        loop {
            match Self::acquire(data) {
                Err(RunError::Busy {
                    is_reading: true, ..
                }) if start.elapsed() < READER_TIMEOUT && !cancel.is_cancelled() => {
                    cancel.wait(Duration::from_millis(50));
                }
                acquired => return acquired,
            }
        }
    }

    /// Excludes deliverers while their files are read. Creates and writes no file. Returns `None`
    /// if there is no lock file; deliverers are not excluded then.
    pub(crate) fn read_lock(data: &DataDir) -> Result<Option<ReadLock>, RunError> {
        Store::default().read_lock(&key(data)?).map_err(run_error)
    }

    fn acquire_for(data: &DataDir, verb: &str) -> Result<Self, RunError> {
        let key = key(data)?;
        // The lock file is kept on release, because a full disk has no space for a new one.
        let claim = Store::default().claim(&key).verb(verb).keep_file(true);
        let tenure = claim.try_acquire().map_err(run_error)?;
        Ok(Self { _tenure: tenure })
    }
}

fn key(data: &DataDir) -> Result<Key, RunError> {
    Key::file(data.spool.join(FILE)).map_err(RunError::Lock)
}

fn run_error(error: tenure::Error) -> RunError {
    match error.holder() {
        Some(holder) => RunError::Busy {
            pid: holder.pid(),
            is_reading: holder.is_reading()
                || holder
                    .record()
                    .is_some_and(|record| record.verb() == Some(READ_VERB)),
        },
        None => RunError::Lock(error),
    }
}

impl RunError {
    /// True if the disk is full or the user's quota is exhausted.
    pub fn is_full(&self) -> bool {
        match self {
            Self::Busy { .. } | Self::OtherDestination { .. } | Self::Fenced => false,
            Self::Lock(error) => error.io_error().is_some_and(is_full),
            Self::Disk(error) => error.is_full(),
        }
    }

    /// True if the file system is read-only.
    pub fn is_read_only(&self) -> bool {
        let read_only =
            |error: &std::io::Error| error.kind() == std::io::ErrorKind::ReadOnlyFilesystem;
        match self {
            Self::Busy { .. } | Self::OtherDestination { .. } | Self::Fenced => false,
            Self::Lock(error) => error.io_error().is_some_and(read_only),
            Self::Disk(error) => error.is_read_only(),
        }
    }
}

impl From<LockError> for RunError {
    fn from(error: LockError) -> Self {
        match error {
            LockError::InUse { pid, .. } => Self::Busy {
                pid,
                is_reading: false,
            },
            LockError::Lock(error) => Self::Lock(error),
            LockError::Disk(error) => error.into(),
        }
    }
}

impl From<Error> for RunError {
    fn from(error: Error) -> Self {
        if error.is_fenced() {
            return Self::Fenced;
        }
        Self::Disk(error)
    }
}

impl fmt::Display for RunError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Busy { pid: Some(pid), .. } => {
                write!(f, "pid {pid} is using this data directory")
            }
            Self::Busy { pid: None, .. } => {
                f.write_str("another process is using this data directory")
            }
            Self::OtherDestination { requested, stored } => match requested {
                Some(requested) => write!(
                    f,
                    "the destination of this data directory is {stored}, not {requested}"
                ),
                None => write!(
                    f,
                    "the destination of this data directory is {stored}, and none was named"
                ),
            },
            Self::Fenced => f.write_str(
                "the right to change this data directory was lost during the run; the next run continues",
            ),
            Self::Lock(error) => error.fmt(f),
            Self::Disk(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for RunError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Busy { .. } | Self::OtherDestination { .. } | Self::Fenced => None,
            Self::Lock(error) => Some(error),
            Self::Disk(error) => Some(error),
        }
    }
}
