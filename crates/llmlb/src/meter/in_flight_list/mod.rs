//! List of the requests in flight, in a file that outlives the server. If the server is killed, the
//! next start turns each listed request into a usage record with the outcome `interrupted`.
//!
//! Each server has a file `in-flight/{uuid}.list` in the data directory and holds a kernel lock on
//! it. The file is mapped into memory, so changes need no system call, and the kernel has them when
//! the process is killed. It grows by segments, which are written in full before they are mapped:
//! so a full disk is a failed write and not a SIGBUS.
//!
//! ```text
//! header      one line of JSON, padded with zeros to the length of a row
//! row         a request, in 4096 bytes: see `row.rs`
//! row ..
//! ```
//!
//! The file is never synced, because it must survive a kill of the server, not a power failure.

#[cfg(any(test, fuzzing))]
pub(crate) mod fuzz;
mod live;
mod recover;
mod row;
#[cfg(test)]
mod tests;

use std::fs::File;
use std::io::{self, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use serde::{Deserialize, Serialize};
use tenure::process::Identity;
use uuid::Uuid;

use crate::backend_id::BackendId;
use crate::sys::data_file;
use crate::sys::mapped_words::MappedWords;

pub(crate) use live::LiveRequest;
pub(crate) use recover::recover;
pub(crate) use row::{Request, RequestState};

use row::{ROW_BYTES, ROW_WORDS};

const DIR: &str = "in-flight";
/// Extension of a list.
const LIST: &str = "list";
/// Extension of an in-flight list that is being created. It is renamed to `.list` when the header
/// is complete, so that no reader finds half a header.
const NEW: &str = "new";
const VERSION: u32 = 1;
/// Maximum number of attempts to create an in-flight list, because a server that starts at the same
/// moment may remove a file that is not locked yet.
const CREATE_TRIES: usize = 3;
const SEGMENT_ROWS: usize = 32;
const SEGMENT_BYTES: usize = SEGMENT_ROWS * ROW_BYTES;
/// Maximum number of segments, which bounds the file. Requests beyond 32,767 at a time are served
/// without a row, so they have no record if the server is killed.
const MAX_SEGMENTS: usize = 1024;

/// First row of an in-flight list, from which the next start learns the server that wrote it.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Header {
    version: u32,
    /// Name of the host that wrote the list. A kernel lock on a network file system may not be
    /// visible to other hosts, so only this host recovers such a list.
    host: String,
    pid: u32,
    process: String,
    /// Name of the server, which the recovered usage records contain.
    instance: String,
}

/// In-flight list of this server. Dropping it removes the file, unless a request is still listed,
/// whose record the next start must write.
#[derive(Debug)]
pub(crate) struct InFlightList {
    path: PathBuf,
    /// The file, which holds the kernel lock while it is open, and the number of its segments.
    file: Mutex<(File, usize)>,
    /// Segments, for readers of all rows. Weak, because a file that is mapped cannot be removed on Windows.
    segments: Mutex<Vec<Weak<MappedWords>>>,
    used: AtomicU64,
    /// True after the file could not grow, so that the warning is logged only once.
    is_full: AtomicBool,
}

/// Free rows of one worker in the in-flight list. A worker takes whole segments, so that workers
/// rarely wait for each other's lock.
#[derive(Debug)]
pub(crate) struct RowPool {
    /// Rows keep the file mapped. They are declared in front of `list` and so dropped first:
    /// Windows does not remove a file that is mapped.
    free: Mutex<Vec<FreeRow>>,
    list: Arc<InFlightList>,
}

#[derive(Debug)]
struct FreeRow {
    segment: Arc<MappedWords>,
    start: usize,
}

/// Row of a request in the in-flight list, until this value is dropped. It must be dropped after
/// the request's usage record is persisted: after a kill, the next start writes records only for
/// requests in the list.
#[derive(Debug)]
pub(crate) struct Row {
    row: Option<FreeRow>,
    pool: Arc<RowPool>,
}

impl InFlightList {
    /// Creates the in-flight list of this server, and locks it so that no other server takes it for
    /// abandoned.
    pub(crate) fn create(data: &Path, host: Option<&str>, instance: &str) -> io::Result<Self> {
        let header = Header {
            version: VERSION,
            host: host.unwrap_or_default().to_owned(),
            pid: std::process::id(),
            process: Identity::from_pid(std::process::id())
                .map(|process| process.to_string())
                .unwrap_or_default(),
            instance: instance.to_owned(),
        };
        let mut first_row = serde_json::to_vec(&header)?;
        first_row.push(b'\n');
        if first_row.len() > ROW_BYTES {
            return Err(io::Error::other(
                "the host name is too long for the header of the list",
            ));
        }
        first_row.resize(ROW_BYTES, 0);
        let dir = data.join(DIR);
        data_file::make_dir(&dir)?;
        data_file::check_dir(&dir)?;
        // Try again on an error: before this server locks the new file, a server that starts at the
        // same moment may take it for abandoned and remove it.
        let mut created = create_file(&dir, &first_row);
        for _ in 1..CREATE_TRIES {
            if created.is_ok() {
                break;
            }
            created = create_file(&dir, &first_row);
        }
        let (path, file) = created?;
        Ok(Self {
            path,
            file: Mutex::new((file, 0)),
            segments: Mutex::default(),
            used: AtomicU64::new(0),
            is_full: AtomicBool::new(false),
        })
    }

    #[cfg(test)]
    fn path(&self) -> &Path {
        &self.path
    }

    fn grow(&self) -> io::Result<Vec<FreeRow>> {
        let (file, count) = &mut *lock(&self.file);
        if *count == MAX_SEGMENTS {
            return Err(io::Error::other(
                "the list of requests in flight has its maximum length",
            ));
        }
        // The header takes the place of the first row in the first segment. Zeros written there
        // would erase it.
        let first = usize::from(*count == 0);
        let (begin, end) = (*count * SEGMENT_BYTES, (*count + 1) * SEGMENT_BYTES);
        let skipped = first * ROW_BYTES;
        file.seek(SeekFrom::Start((begin + skipped) as u64))?;
        // Write zeros instead of only extending the file: if the disk were full, a store to a
        // mapped hole would raise SIGBUS and end the server.
        file.write_all(&vec![0; end - begin - skipped])?;
        let words = SEGMENT_ROWS * ROW_WORDS;
        let segment = Arc::new(MappedWords::map(file, begin as u64, words)?);
        lock(&self.segments).push(Arc::downgrade(&segment));
        *count += 1;
        let rows = (first..SEGMENT_ROWS).rev().map(|row| FreeRow {
            segment: Arc::clone(&segment),
            start: row * ROW_WORDS,
        });
        Ok(rows.collect())
    }

    /// Removes the file, unless a request is still listed: it has no record yet, and the next start
    /// writes one from the file.
    pub(crate) fn close(&self) {
        if self.used.load(Ordering::Acquire) == 0 {
            let _ = std::fs::remove_file(&self.path);
        }
    }

    fn note_unlisted(&self, error: &io::Error) {
        if !self.is_full.swap(true, Ordering::Relaxed) {
            tracing::warn!(
                "usage: cannot extend {}: {error}; more concurrent requests are served, but have no \
                 record if this server is killed",
                self.path.display()
            );
        }
    }
}

impl Drop for InFlightList {
    fn drop(&mut self) {
        self.close();
    }
}

impl RowPool {
    pub(crate) fn new(list: Arc<InFlightList>) -> Self {
        Self {
            free: Mutex::default(),
            list,
        }
    }

    /// Adds a request to the in-flight list. Returns `None` if the list cannot grow; the request is
    /// then served without a row.
    pub(crate) fn add(self: &Arc<Self>, request: &Request<'_>) -> Option<Row> {
        let mut free = lock(&self.free);
        if free.is_empty() {
            match self.list.grow() {
                Ok(rows) => *free = rows,
                Err(error) => {
                    self.list.note_unlisted(&error);
                    return None;
                }
            }
        }
        let row = free.pop()?;
        drop(free);
        self.list.used.fetch_add(1, Ordering::Relaxed);
        row::write_request(row.words(), request);
        Some(Row {
            row: Some(row),
            pool: Arc::clone(self),
        })
    }
}

impl FreeRow {
    fn words(&self) -> &[AtomicU64] {
        &self.segment[self.start..self.start + ROW_WORDS]
    }
}

impl Row {
    pub(crate) fn note_model(&self, model: &str) {
        self.change(|words| row::write_model(words, model));
    }

    pub(crate) fn note_backend(&self, backend: &str, served_model: Option<&str>) {
        self.change(|words| row::write_backend(words, backend, served_model));
    }

    /// Notes the number of the backend to which the request's tokens belong until its record is final.
    pub(crate) fn note_served_by(&self, backend: Option<BackendId>) {
        self.change(|words| row::write_served_by(words, backend));
    }

    pub(crate) fn note_state(&self, state: &RequestState) {
        self.change(|words| row::write_state(words, state));
    }

    /// Stores the final usage record in the row before it is persisted. After a kill in between,
    /// the recovery stages the same record and not a second one.
    pub(crate) fn note_record(&self, record: &spool::Record) {
        self.change(|words| row::write_record(words, record));
    }

    fn change(&self, change: impl FnOnce(&[AtomicU64])) {
        if let Some(row) = &self.row {
            change(row.words());
        }
    }
}

impl Drop for Row {
    fn drop(&mut self) {
        if let Some(row) = self.row.take() {
            row::clear(row.words());
            self.pool.list.used.fetch_sub(1, Ordering::Release);
            lock(&self.pool.free).push(row);
        }
    }
}

/// Creates and locks the file of an in-flight list, which begins with `header`. Returns the path
/// and the file.
fn create_file(dir: &Path, header: &[u8]) -> io::Result<(PathBuf, File)> {
    let path = dir.join(format!("{}.{LIST}", Uuid::now_v7().simple()));
    let new = path.with_extension(NEW);
    let mut file = data_file::create_new(&new)?;
    let mut create = || {
        // Lock the file before it is renamed to `.list`. Otherwise a starting server could find it
        // unlocked, take it for abandoned and remove it.
        if !tenure::file::try_lock(&file)? {
            return Err(io::Error::other("another process has locked the new list"));
        }
        file.write_all(header)?;
        std::fs::rename(&new, &path)
    };
    match create() {
        Ok(()) => Ok((path, file)),
        Err(error) => {
            let _ = std::fs::remove_file(&new);
            Err(error)
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
