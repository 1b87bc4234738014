//! One deliverer at a time for a data directory.

use std::fmt;
use std::path::Path;
use std::time::{Duration, Instant};

use tenure::{Key, ReadLock, Store, Tenure};

use crate::cancel::Cancel;
use crate::data_dir::DataDir;
use crate::error::{Error, is_full};
use crate::staging_lock::LockError;

const FILE: &str = ".delivery.lock";
/// Earlier versions owned the lock under this verb in order to read.
const READS: &str = "verify";
/// How long somebody who reads the books is waited for.
const MOST_FOR_READERS: Duration = Duration::from_secs(30);

/// Sole right to deliver what is in a data directory, and to change what was noted about it.
#[derive(Debug)]
#[must_use = "others may deliver as soon as it is dropped"]
pub struct DeliveryLock {
    _tenure: Tenure,
}

/// Why a run did not do its work.
#[derive(Debug)]
#[non_exhaustive]
pub enum RunError {
    /// Another process delivers from this data directory. Nothing was changed.
    #[non_exhaustive]
    Busy {
        /// Its process, if it is proven.
        pid: Option<u32>,
        /// It only reads the books.
        is_reading: bool,
    },
    /// The data directory delivers to another destination. Nothing was changed.
    #[non_exhaustive]
    OtherDestination {
        /// The destination that was asked for. None: archiving was.
        asked: Option<String>,
        /// The destination of the data directory.
        noted: String,
    },
    /// The lock could not be taken for another reason.
    Lock(tenure::Error),
    /// Something could not be read or written.
    Disk(Error),
}

impl DeliveryLock {
    /// Takes the right, or says who has it.
    pub fn acquire(data: &Path) -> Result<Self, RunError> {
        let data = DataDir::new(data);
        data.make(&crate::disk::RealDisk).map_err(RunError::Disk)?;
        Self::acquire_for(&data, "deliver")
    }

    /// The same, waiting for somebody who only reads the books.
    pub(crate) fn acquire_after_readers(data: &Path, cancel: &Cancel) -> Result<Self, RunError> {
        let start = Instant::now();
        loop {
            match Self::acquire(data) {
                Err(RunError::Busy {
                    is_reading: true, ..
                }) if start.elapsed() < MOST_FOR_READERS && !cancel.is_cancelled() => {
                    cancel.wait(Duration::from_millis(50));
                }
                taken => return taken,
            }
        }
    }

    /// Keeps deliverers out while their files are read. It creates and writes nothing, also if this
    /// process is killed. `None`: there is no lock file, and no deliverer is kept out.
    pub(crate) fn read_lock(data: &DataDir) -> Result<Option<ReadLock>, RunError> {
        Store::default().read_lock(&key(data)?).map_err(refused)
    }

    fn acquire_for(data: &DataDir, verb: &str) -> Result<Self, RunError> {
        let key = key(data)?;
        // A full disk must not keep the next deliverer out.
        let claim = Store::default().claim(&key).verb(verb).keep_file(true);
        let tenure = claim.try_acquire().map_err(refused)?;
        Ok(Self { _tenure: tenure })
    }
}

fn key(data: &DataDir) -> Result<Key, RunError> {
    Key::file(data.spool.join(FILE)).map_err(RunError::Lock)
}

fn refused(error: tenure::Error) -> RunError {
    match error.holder() {
        Some(holder) => RunError::Busy {
            pid: holder.pid(),
            is_reading: holder.is_reading()
                || holder
                    .record()
                    .is_some_and(|record| record.verb() == Some(READS)),
        },
        None => RunError::Lock(error),
    }
}

impl RunError {
    /// The disk, or the user's share of it, is full.
    pub fn is_full(&self) -> bool {
        match self {
            Self::Busy { .. } | Self::OtherDestination { .. } => false,
            Self::Lock(error) => error.io_error().is_some_and(is_full),
            Self::Disk(error) => error.is_full(),
        }
    }

    /// The disk can only be read.
    pub fn is_read_only(&self) -> bool {
        let read_only =
            |error: &std::io::Error| error.kind() == std::io::ErrorKind::ReadOnlyFilesystem;
        match self {
            Self::Busy { .. } | Self::OtherDestination { .. } => false,
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
            LockError::Disk(error) => Self::Disk(error),
        }
    }
}

impl From<Error> for RunError {
    fn from(error: Error) -> Self {
        Self::Disk(error)
    }
}

impl fmt::Display for RunError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Busy { pid: Some(pid), .. } => {
                write!(f, "pid {pid} is at work on this data directory")
            }
            Self::Busy { pid: None, .. } => {
                f.write_str("another process is at work on this data directory")
            }
            Self::OtherDestination { asked, noted } => match asked {
                Some(asked) => write!(
                    f,
                    "the destination of this data directory is {noted}, not {asked}"
                ),
                None => write!(
                    f,
                    "the destination of this data directory is {noted}, and none was named"
                ),
            },
            Self::Lock(error) => error.fmt(f),
            Self::Disk(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for RunError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Busy { .. } | Self::OtherDestination { .. } => None,
            Self::Lock(error) => Some(error),
            Self::Disk(error) => Some(error),
        }
    }
}
