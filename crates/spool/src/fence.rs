//! A right that a run needs in addition to the locks of the data directory, and that can end during
//! the run: for example a lease, if several hosts share the directory.

use std::ffi::OsStr;
use std::fmt;
use std::fs::File;
use std::io;
use std::path::Path;
use std::sync::Arc;

use crate::disk::Disk;

/// Check that runs before every change of a data directory and before every batch is sent.
///
/// After the right has ended, nothing is changed or sent: the run ends as by a crash at this
/// operation, with [`RunError::Fenced`](crate::RunError::Fenced), and the next run of any process
/// continues its work.
///
/// The check is called often, so it must be cheap. A check cannot stop an operation that has begun.
/// The owner of the right therefore also holds the locks of the data directory until its run has
/// ended.
///
/// ```
/// use std::sync::atomic::{AtomicBool, Ordering};
/// use std::sync::Arc;
/// use spool::{Destination, Fence, RunError, Runner, Watch};
///
/// let data = tempfile::tempdir()?;
/// let is_held = Arc::new(AtomicBool::new(true));
/// let check = Arc::clone(&is_held);
/// let fence = Fence::new(move || check.load(Ordering::Relaxed));
/// let mut runner = Runner::new(data.path()).fenced(fence);
/// let mut run = || {
///     let (options, delivery) = (Default::default(), Default::default());
///     runner.run(&options, &delivery, Destination::Archive, &Watch::silent())
/// };
/// run()?;
/// is_held.store(false, Ordering::Relaxed);
/// assert!(matches!(run(), Err(RunError::Fenced)));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct Fence(Arc<dyn Fn() -> bool + Send + Sync>);

impl Fence {
    /// Creates a fence. `is_held` returns true while changes are allowed.
    pub fn new(is_held: impl Fn() -> bool + Send + Sync + 'static) -> Self {
        Self(Arc::new(is_held))
    }

    fn check(&self) -> io::Result<()> {
        if (self.0)() {
            Ok(())
        } else {
            Err(io::Error::other(FenceLost))
        }
    }
}

impl fmt::Debug for Fence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Fence")
    }
}

/// Inner error of the I/O error with which a fence rejects an operation.
#[derive(Debug)]
struct FenceLost;

impl fmt::Display for FenceLost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the right to change this data directory was lost")
    }
}

impl std::error::Error for FenceLost {}

/// True if a fence rejected the operation.
pub(crate) fn is_fenced(error: &io::Error) -> bool {
    error
        .get_ref()
        .is_some_and(<dyn std::error::Error + Send + Sync>::is::<FenceLost>)
}

/// A disk that checks a fence before every change.
#[derive(Debug)]
pub(crate) struct FencedDisk {
    disk: Arc<dyn Disk>,
    fence: Fence,
}

impl FencedDisk {
    pub(crate) fn new(disk: Arc<dyn Disk>, fence: Fence) -> Self {
        Self { disk, fence }
    }
}

impl Disk for FencedDisk {
    fn make_dir(&self, dir: &Path) -> io::Result<()> {
        self.fence.check()?;
        self.disk.make_dir(dir)
    }

    fn create(&self, path: &Path) -> io::Result<File> {
        self.fence.check()?;
        self.disk.create(path)
    }

    fn write_at(&self, file: &File, at: u64, bytes: &[u8]) -> io::Result<()> {
        self.fence.check()?;
        self.disk.write_at(file, at, bytes)
    }

    fn append(&self, file: &File, bytes: &[u8]) -> io::Result<()> {
        self.fence.check()?;
        self.disk.append(file, bytes)
    }

    fn sync(&self, file: &File) -> io::Result<()> {
        self.disk.sync(file)
    }

    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        self.disk.sync_dir(dir)
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.fence.check()?;
        self.disk.rename(from, to)
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        self.fence.check()?;
        self.disk.remove(path)
    }

    fn truncate(&self, file: &File, length: u64) -> io::Result<()> {
        self.fence.check()?;
        self.disk.truncate(file, length)
    }

    fn open(&self, path: &Path) -> io::Result<File> {
        self.disk.open(path)
    }

    fn open_to_write(&self, path: &Path) -> io::Result<File> {
        self.disk.open_to_write(path)
    }

    fn read(&self, file: &File, into: &mut [u8]) -> io::Result<usize> {
        self.disk.read(file, into)
    }

    fn list(&self, dir: &Path, each: &mut dyn FnMut(&OsStr, bool)) -> io::Result<()> {
        self.disk.list(dir, each)
    }

    fn exists(&self, path: &Path) -> io::Result<bool> {
        self.disk.exists(path)
    }

    fn process(&self) -> usize {
        self.disk.process()
    }

    fn before_record(&self) -> io::Result<()> {
        self.fence.check()?;
        self.disk.before_record()
    }

    fn before_send(&self) -> io::Result<()> {
        self.fence.check()?;
        self.disk.before_send()
    }
}
