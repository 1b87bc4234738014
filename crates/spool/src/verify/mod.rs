//! The books: staged = delivered + archived + pending + failed, proven from the files on disk.
//!
//! Every line of an entry has a number. The journal of consolidated entries has the number of lines
//! of each entry. Every batch names the lines that it contains, and the journal of batches names
//! the lines of the batches that were delivered, archived or deleted. So a line that is in no
//! batch, or in two, can be named.

mod batches;
mod coverage;
mod entries;
mod small_files;

use std::fmt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crate::data_dir::DataDir;
use crate::delivery::{DeliveryLock, Progress, RunError, Watch};
use crate::error::Error;
use crate::files::{for_each_file, read_bounded};
use crate::staging_lock::{LockError, StagingLock};
use coverage::Coverage;

/// Maximum time to wait for another process that consolidates or delivers. After it, the files are
/// read without the lock, so that `verify` always ends.
const WAIT: Duration = Duration::from_secs(2);
/// Maximum number of further passes if a pass finds problems while other processes may move files.
const MAX_REPETITIONS: usize = 4;

/// Numbers of records by state, and the problems that were found.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct Books {
    /// Number of all records that were ever staged and are accounted for, each counted once.
    pub staged: u64,
    /// Number of records that their destination has accepted.
    pub delivered: u64,
    /// Number of records that had no destination: those in `archive/`, and those that were deleted
    /// from it.
    pub archived: u64,
    /// Number of records that are staged, or in batches that are not delivered yet.
    pub pending: u64,
    /// Number of records of rejected batches and of damaged lines that are kept in `failed/`.
    pub failed: u64,
    /// Number of repetitions: records that were staged again with the same id. Each record counts
    /// once.
    pub repeated: u64,
    /// Problems that were found. Without any, the books balance.
    pub problems: Vec<Problem>,
    /// Another process that consolidated or delivered during the check. The problems may then be
    /// transient.
    pub busy: Option<Busy>,
}

/// Another process that consolidates or delivers in the data directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Busy {
    /// Id of the process, if it is known for certain.
    pub pid: Option<u32>,
}

/// A problem in one file.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Problem {
    /// The file.
    pub path: PathBuf,
    /// Number of the record or line, or the day, within the file that has the problem; `None` if
    /// the problem is of the whole file.
    pub record: Option<String>,
    /// Description of the problem.
    pub what: String,
}

/// Proves that no record was lost and none exists twice, or names the files and records for which
/// that is not so. Changes nothing.
///
/// ```
/// use spool::{Durability, Record, Staging, Watch, verify};
///
/// let data = tempfile::tempdir()?;
/// let staging = Staging::open(data.path().join("_staging"))?;
/// staging.stage(&Record::parse(r#"{"tokens":42}"#)?, Durability::Power)?;
/// staging.close()?;
///
/// let books = verify(data.path(), &Watch::silent())?;
/// assert!(books.balance());
/// assert_eq!((books.staged, books.pending), (1, 1));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn verify(data: &Path, watch: &Watch<'_>) -> Result<Books, Error> {
    verify_in(&DataDir::new(data), watch)
}

/// Checks the books as [`verify`] does, without the content of `archive/` and of quarantined files: these never change,
/// and may be large. Staged entries, pending and rejected batches, journals and totals are read. So it finds a staged
/// entry or a pending batch that is damaged, missing or there twice. Changes nothing.
pub fn verify_changing(data: &Path, watch: &Watch<'_>) -> Result<Books, Error> {
    verify_scope(&DataDir::new(data), watch, Scope::Changing)
}

/// Files whose content a verification reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Scope {
    All,
    /// Files that change: not `archive/` and quarantined files.
    Changing,
}

pub(crate) fn verify_in(data: &DataDir, watch: &Watch<'_>) -> Result<Books, Error> {
    verify_scope(data, watch, Scope::All)
}

fn verify_scope(data: &DataDir, watch: &Watch<'_>, scope: Scope) -> Result<Books, Error> {
    let (mut books, mut is_certain) = verify_once(data, watch, scope)?;
    // Files move while another process works, so a problem is reported only if every pass finds it.
    for _ in 0..MAX_REPETITIONS {
        if is_certain || books.balance() || watch.cancel.is_cancelled() {
            break;
        }
        let before = books.problems;
        (books, is_certain) = verify_once(data, watch, scope)?;
        is_certain |= books.busy.is_none() && books.problems == before;
        books.problems.retain(|problem| before.contains(problem));
    }
    Ok(books)
}

/// Makes one pass over all files. Returns the books, and true if locks kept every file in place
/// during the pass, so that its problems are certain.
fn verify_once(data: &DataDir, watch: &Watch<'_>, scope: Scope) -> Result<(Books, bool), Error> {
    let mut verification = Verification {
        data,
        watch,
        books: Books::default(),
        coverage: Coverage::default(),
        archived: Vec::new(),
    };
    // Acquire the delivery lock and the staging lock: while both are held, no other process moves a
    // file. Otherwise a record that moves meanwhile could be found twice and reported as a problem.
    let delivery = verification.wait_for(|| match DeliveryLock::read_lock(data) {
        Err(RunError::Busy { pid, .. }) => Err(Busy { pid }),
        lock => Ok(lock.ok().flatten()),
    });
    let staging = verification.wait_for(|| match StagingLock::read_lock(&data.staging) {
        Err(LockError::InUse { pid, .. }) => Err(Busy { pid }),
        lock => Ok(lock.ok().flatten()),
    });
    verification.read()?;
    let is_certain = delivery.is_some() && staging.is_some();
    // `archive/` and `failed/` may take minutes to read. Their files never change, so the other
    // processes need not wait.
    drop((delivery, staging));
    if scope == Scope::All {
        verification.check_archive();
        verification.check_quarantine()?;
    }
    Ok((verification.books, is_certain))
}

impl Books {
    /// True if no problem was found, so that every staged record is accounted for once.
    pub fn balance(&self) -> bool {
        self.problems.is_empty()
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: ", self.path.display())?;
        if let Some(record) = &self.record {
            write!(f, "{record}: ")?;
        }
        f.write_str(&self.what)
    }
}

/// One pass over the files of a data directory.
struct Verification<'a> {
    data: &'a DataDir,
    watch: &'a Watch<'a>,
    books: Books,
    coverage: Coverage,
    /// Names of batches in `archive/` whose content is checked after the locks are released.
    archived: Vec<String>,
}

impl Verification<'_> {
    /// Acquires a lock, and waits for a process that holds it. After the maximum time, the files
    /// are read without the lock.
    fn wait_for<T>(&mut self, acquire: impl Fn() -> Result<Option<T>, Busy>) -> Option<T> {
        let start = Instant::now();
        loop {
            match acquire() {
                Ok(lock) => return lock,
                Err(busy) if start.elapsed() > WAIT || self.watch.cancel.is_cancelled() => {
                    self.books.busy = Some(busy);
                    return None;
                }
                Err(_) => {
                    self.watch.cancel.wait(Duration::from_millis(50));
                }
            }
        }
    }

    /// Reads the files in the order in which records pass through them. A record that moves
    /// meanwhile is then found a second time, and never missed.
    fn read(&mut self) -> Result<(), Error> {
        self.read_entry_journal()?;
        self.read_staging()?;
        self.read_batches()?;
        self.read_batch_journal()?;
        self.read_small_files()?;
        self.balance();
        Ok(())
    }

    fn problem(&mut self, path: &Path, record: Option<String>, what: impl Into<String>) {
        self.books.problems.push(Problem {
            path: path.to_owned(),
            record,
            what: what.into(),
        });
    }

    /// Returns the sorted names of a directory's files. A missing directory has none.
    fn files(&self, dir: &Path) -> Result<Vec<String>, Error> {
        let mut names = Vec::new();
        for_each_file(&*self.data.disk, dir, |name| names.push(name.to_owned()))?;
        names.sort_unstable();
        Ok(names)
    }

    /// Returns the content of a file, or `None` if it cannot be read or has moved meanwhile.
    fn content(&mut self, path: &Path) -> Option<Vec<u8>> {
        match read_bounded(&*self.data.disk, path) {
            Ok(Some(bytes)) => {
                self.checked(bytes.len() as u64);
                Some(bytes)
            }
            Ok(None) => {
                self.problem(
                    path,
                    None,
                    "the file is longer than any file that spool writes",
                );
                None
            }
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => None,
            Err(error) => {
                self.problem(path, None, format!("the file cannot be read: {error}"));
                None
            }
        }
    }

    fn checked(&self, bytes: u64) {
        (self.watch.progress)(Progress::Checked { bytes });
    }
}

/// Finds the id of a record in a text that may be damaged, so that a problem can name the record.
fn id_in(text: &[u8]) -> Option<String> {
    let mark = br#""id":""#;
    let start = text.windows(mark.len()).position(|part| part == mark)? + mark.len();
    let id = std::str::from_utf8(text.get(start..start + 36)?).ok()?;
    uuid::Uuid::try_parse(id).ok().map(|id| id.to_string())
}

/// Formats the number of a record or line, with its id if that is legible.
fn named(what: &str, number: u64, text: &[u8]) -> String {
    match id_in(text) {
        Some(id) => format!("{what} {number} (id {id})"),
        None => format!("{what} {number}"),
    }
}
