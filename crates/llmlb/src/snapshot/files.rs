//! Parts of the snapshot that are read from files: usage by hour, and if the books balance. A thread of its own reads them while
//! somebody views snapshots, so that a slow disk delays neither requests nor snapshots.
//!
//! After each reading it pauses for [`PAUSE_FACTOR`] times as long, so that large data directories cost no
//! more of a processor than small ones.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver, SyncSender};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime};
use std::{fs, io, thread};

use spool::Watch;

use super::format::Usage;
use super::usage;
use crate::text;

/// Minimum time between two readings of the usage.
const USAGE_EVERY: Duration = Duration::from_secs(30);
/// Minimum time between two checks of the books.
const BOOKS_EVERY: Duration = Duration::from_secs(60);
/// Pause after a reading, as a multiple of its duration.
const PAUSE_FACTOR: u32 = 200;
/// Maximum size of a data directory whose books are checked. A check reads every file, and keeps the
/// exporter from running meanwhile.
const MAX_CHECKED: u64 = 64 << 20;
/// Maximum number of files of a data directory whose books are checked.
const MAX_CHECKED_FILES: usize = 20_000;
/// Maximum depth of the directories that are measured.
const MAX_DEPTH: usize = 4;
/// Maximum number of characters of a problem.
const MAX_PROBLEM: usize = 300;

/// Result of the last readings.
#[derive(Clone, Debug, Default)]
pub(super) struct FileReport {
    /// `None` before the first reading.
    pub(super) usage: Option<Arc<Usage>>,
    pub(super) books: Books,
    /// Time of the last check of the books.
    pub(super) books_at: Option<SystemTime>,
    /// The first problem of the books, or the reason why they were not checked.
    pub(super) books_problem: Option<String>,
}

/// Result of a check of the books.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Books {
    Balanced,
    Unbalanced,
    #[default]
    Unknown,
}

impl Books {
    pub(super) fn word(self) -> &'static str {
        match self {
            Self::Balanced => "balanced",
            Self::Unbalanced => "unbalanced",
            Self::Unknown => "unknown",
        }
    }
}

/// The reader's state, and the way to wake it.
#[derive(Debug, Default)]
pub(super) struct Files {
    report: Mutex<FileReport>,
    is_reading: AtomicBool,
    /// Wakes the thread; `None` without a data directory.
    wake: Mutex<Option<SyncSender<()>>>,
}

impl Files {
    /// Starts the thread.
    pub(super) fn start(self: &Arc<Self>, data: PathBuf) -> io::Result<()> {
        let (wake, woken) = mpsc::sync_channel(1);
        *lock(&self.wake) = Some(wake);
        let files = Arc::clone(self);
        thread::Builder::new()
            .name("llmlb-files".to_owned())
            .spawn(move || files.run(&data, &woken))?;
        Ok(())
    }

    /// Ends the thread after the reading in progress.
    pub(super) fn stop(&self) {
        *lock(&self.wake) = None;
    }

    pub(super) fn report(&self) -> FileReport {
        lock(&self.report).clone()
    }

    /// Asks the thread to read what is due.
    pub(super) fn request(&self) {
        if !self.is_reading.load(Ordering::Relaxed)
            && let Some(wake) = &*lock(&self.wake)
        {
            // A full channel has a request already.
            let _ = wake.try_send(());
        }
    }

    fn run(&self, data: &Path, woken: &Receiver<()>) {
        let now = Instant::now();
        let (mut usage_due, mut books_due) = (now, now);
        while woken.recv().is_ok() {
            self.is_reading.store(true, Ordering::Relaxed);
            let start = Instant::now();
            if start >= usage_due {
                self.read_usage(data);
                usage_due = after(start, USAGE_EVERY);
            }
            let start = Instant::now();
            if start >= books_due {
                self.check_books(data);
                books_due = after(start, BOOKS_EVERY);
            }
            self.is_reading.store(false, Ordering::Relaxed);
        }
    }

    fn read_usage(&self, data: &Path) {
        match usage::read(data, SystemTime::now()) {
            Ok(usage) => lock(&self.report).usage = Some(Arc::new(usage)),
            Err(error) => tracing::debug!(%error, "cannot read usage for the dashboard"),
        }
    }

    fn check_books(&self, data: &Path) {
        let (books, problem) = check(data);
        let mut report = lock(&self.report);
        report.books = books;
        report.books_at = Some(SystemTime::now());
        report.books_problem = problem.map(|what| {
            let what = text::shortened(&what, MAX_PROBLEM);
            text::plain(&what).into_owned()
        });
    }
}

fn after(start: Instant, every: Duration) -> Instant {
    let end = Instant::now();
    end + every.max((end - start).saturating_mul(PAUSE_FACTOR))
}

/// Checks the books. Returns the first problem, or the reason why they were not checked.
fn check(data: &Path) -> (Books, Option<String>) {
    if !is_small(data) {
        let why =
            "the data directory is too large for a check at intervals: run `llmlb usage verify`";
        return (Books::Unknown, Some(why.to_owned()));
    }
    match spool::verify(data, &Watch::silent()) {
        Ok(books) if books.balance() => (Books::Balanced, None),
        Ok(books) => {
            let problem = books.problems.first().map(ToString::to_string);
            // While another process moves files, problems may be transient.
            let found = match books.busy {
                Some(_) => Books::Unknown,
                None => Books::Unbalanced,
            };
            (found, problem)
        }
        Err(error) => (Books::Unknown, Some(error.to_string())),
    }
}

/// True if the files of a data directory are small enough for a check at intervals.
fn is_small(data: &Path) -> bool {
    let (mut bytes, mut count) = (0, 0);
    let mut dirs = vec![(data.to_owned(), 0)];
    while let Some((dir, depth)) = dirs.pop() {
        let Ok(entries) = fs::read_dir(dir) else {
            continue; // A directory that was removed meanwhile, or none yet.
        };
        for entry in entries.flatten() {
            let Ok(metadata) = entry.metadata() else {
                continue;
            };
            if metadata.is_dir() && depth < MAX_DEPTH {
                dirs.push((entry.path(), depth + 1));
            }
            bytes += metadata.len();
            count += 1;
            if bytes > MAX_CHECKED || count > MAX_CHECKED_FILES {
                return false;
            }
        }
    }
    true
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use spool::{Durability, Options, Record, Staging, consolidate};

    use super::*;

    #[test]
    fn books_are_unbalanced_after_a_batch_is_lost() {
        let dir = tempfile::tempdir().unwrap();
        let staging = Staging::open(dir.path().join("_staging")).unwrap();
        let record = Record::parse(r#"{"tokens":1}"#).unwrap();
        staging.stage(&record, Durability::Process).unwrap();
        staging.close().unwrap();
        consolidate(dir.path(), &Options::default()).unwrap();
        assert_eq!(check(dir.path()), (Books::Balanced, None));
        let spool = dir.path().join("spool");
        for batch in fs::read_dir(&spool).unwrap() {
            fs::remove_file(batch.unwrap().path()).unwrap();
        }
        let (books, problem) = check(dir.path());
        assert_eq!(books, Books::Unbalanced);
        assert!(problem.is_some());
    }

    #[test]
    fn large_data_directory_is_not_checked() {
        let dir = tempfile::tempdir().unwrap();
        let archive = dir.path().join("archive");
        fs::create_dir(&archive).unwrap();
        let file = fs::File::create(archive.join("large")).unwrap();
        file.set_len(MAX_CHECKED + 1).unwrap();
        assert!(!is_small(dir.path()));
        let (books, why) = check(dir.path());
        assert_eq!(books, Books::Unknown);
        assert!(why.unwrap().contains("llmlb usage verify"));
        file.set_len(0).unwrap();
        assert!(is_small(dir.path()));
    }
}
