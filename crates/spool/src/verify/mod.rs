//! The books: staged = delivered + archived + pending + failed, proven from what is on the disk.
//!
//! Every line of an entry has a number; the journal of what was taken says how many lines each entry
//! had; every batch says which lines are in it; the journal of what was sent says which batches are
//! gone, and which lines they had. So a line that is in no batch, or in two, has a name.

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

/// How long to wait for those who are at work.
const WAIT: Duration = Duration::from_secs(2);
/// How often to look again at what seemed wrong.
const MOST_LOOKS: usize = 4;

/// What the books say, in records.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct Books {
    /// All that were ever staged and are accounted for, each once.
    pub staged: u64,
    /// Those that their destination has.
    pub delivered: u64,
    /// Those that had no destination.
    pub archived: u64,
    /// Those that wait: staged or in batches.
    pub pending: u64,
    /// Those in `failed/`, and lines that were set aside there.
    pub failed: u64,
    /// Records that were staged more than once; they count once.
    pub repeated: u64,
    /// What is wrong. None: the books balance.
    pub problems: Vec<Problem>,
    /// A process that is at work: what looks wrong may be on its way.
    pub busy: Option<Busy>,
}

/// Somebody is at work on the data directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Busy {
    /// Its process, if it is proven.
    pub pid: Option<u32>,
}

/// Something that is wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Problem {
    /// In which file.
    pub path: PathBuf,
    /// With which record or line of it.
    pub record: Option<String>,
    /// What.
    pub what: String,
}

/// Proves that nothing was lost and nothing is there twice, or says what is wrong with what. It
/// changes nothing.
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

pub(crate) fn verify_in(data: &DataDir, watch: &Watch<'_>) -> Result<Books, Error> {
    let (mut books, mut is_still) = audit(data, watch)?;
    // While another process is at work files move: a problem counts only if every look finds it.
    for _ in 0..MOST_LOOKS {
        if is_still || books.balance() || watch.cancel.is_cancelled() {
            break;
        }
        let seen = books.problems;
        (books, is_still) = audit(data, watch)?;
        is_still |= books.busy.is_none() && books.problems == seen;
        books.problems.retain(|problem| seen.contains(problem));
    }
    Ok(books)
}

/// Reads everything once. `true`: locks kept every file in place meanwhile.
fn audit(data: &DataDir, watch: &Watch<'_>) -> Result<(Books, bool), Error> {
    let mut audit = Audit {
        data,
        watch,
        books: Books::default(),
        coverage: Coverage::default(),
        archived: Vec::new(),
    };
    // While both locks are held nothing moves.
    let delivery = audit.wait_for(|| match DeliveryLock::read_lock(data) {
        Err(RunError::Busy { pid, .. }) => Err(Busy { pid }),
        taken => Ok(taken.ok().flatten()),
    });
    let staging = audit.wait_for(|| match StagingLock::read_lock(&data.staging) {
        Err(LockError::InUse { pid, .. }) => Err(Busy { pid }),
        taken => Ok(taken.ok().flatten()),
    });
    audit.read()?;
    let is_still = delivery.is_some() && staging.is_some();
    // What is kept for good may take minutes to read, and does not change.
    drop((delivery, staging));
    audit.check_archive();
    audit.check_aside()?;
    Ok((audit.books, is_still))
}

impl Books {
    /// Nothing is wrong.
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

struct Audit<'a> {
    data: &'a DataDir,
    watch: &'a Watch<'a>,
    books: Books,
    coverage: Coverage,
    /// Batches in `archive/` whose content is still to be checked.
    archived: Vec<String>,
}

impl Audit<'_> {
    /// Takes a lock, waiting for whoever has it. Without it the books are read all the same.
    fn wait_for<T>(&mut self, take: impl Fn() -> Result<Option<T>, Busy>) -> Option<T> {
        let start = Instant::now();
        loop {
            match take() {
                Ok(taken) => return taken,
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

    /// In this order, so that what moves on meanwhile is met again further on, not missed.
    fn read(&mut self) -> Result<(), Error> {
        self.read_taken()?;
        self.read_staging()?;
        self.read_batches()?;
        self.read_sent()?;
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

    /// The files of a directory, by name. One that is not there has none.
    fn files(&self, dir: &Path) -> Result<Vec<String>, Error> {
        let mut names = Vec::new();
        for_each_file(&*self.data.disk, dir, |name| names.push(name.to_owned()))?;
        names.sort_unstable();
        Ok(names)
    }

    /// The content of a file; one that went away meanwhile has moved on.
    fn content(&mut self, path: &Path) -> Option<Vec<u8>> {
        match read_bounded(&*self.data.disk, path) {
            Ok(Some(bytes)) => {
                self.checked(bytes.len() as u64);
                Some(bytes)
            }
            Ok(None) => {
                self.problem(path, None, "it is longer than anything we write");
                None
            }
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => None,
            Err(error) => {
                self.problem(path, None, format!("it cannot be read: {error}"));
                None
            }
        }
    }

    fn checked(&self, bytes: u64) {
        (self.watch.progress)(Progress::Checked { bytes });
    }
}

/// The id in a text that may be damaged, if one is still to be seen.
fn id_in(text: &[u8]) -> Option<String> {
    let mark = br#""id":""#;
    let start = text.windows(mark.len()).position(|part| part == mark)? + mark.len();
    let id = std::str::from_utf8(text.get(start..start + 36)?).ok()?;
    uuid::Uuid::try_parse(id).ok().map(|id| id.to_string())
}

/// How a record is named.
fn named(what: &str, number: u64, text: &[u8]) -> String {
    match id_in(text) {
        Some(id) => format!("{what} {number} (id {id})"),
        None => format!("{what} {number}"),
    }
}
