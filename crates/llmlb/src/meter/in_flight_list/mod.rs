//! Requests in flight, in a file that outlives the server. If the server is killed, the next start turns
//! each of them into a usage record with the outcome `interrupted`.
//!
//! Each server has a file `in-flight/{uuid}.list` in the data directory and holds a kernel lock on it. The
//! file is mapped into memory, so changes need no system call, and the kernel has them when the process is
//! killed. It grows by segments, which are written in full before they are mapped, so that a full disk is
//! an error of the write.
//!
//! ```text
//! header      one line of JSON, padded with zeros to the length of a row
//! row         a request, in 4096 bytes: see `row.rs`
//! row ..
//! ```
//!
//! A power failure can lose the file or parts of it: it is never synced.

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

/// Directory of the lists in the data directory.
const DIR: &str = "in-flight";
/// Extension of a list.
const LIST: &str = "list";
/// Extension of a list that is not complete.
const NEW: &str = "new";
/// Version of the format.
const VERSION: u32 = 1;
/// Maximum number of attempts to create a list.
const CREATE_TRIES: usize = 3;
/// Number of rows that a list grows by.
const SEGMENT_ROWS: usize = 32;
const SEGMENT_BYTES: usize = SEGMENT_ROWS * ROW_BYTES;
/// Maximum number of segments. Requests beyond 32,767 at a time are served without a row.
const MAX_SEGMENTS: usize = 1024;

/// First row of a list.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Header {
    version: u32,
    /// Host name. Locks on a network file system may not be visible to other hosts.
    host: String,
    pid: u32,
    /// Identity of the process, for people who read the file.
    process: String,
    /// Name of the server in its records.
    instance: String,
}

/// The list of this server. Dropping it removes the file, unless a request is still listed.
#[derive(Debug)]
pub(crate) struct InFlightList {
    path: PathBuf,
    /// The file, whose lock this holds, and the number of its segments.
    file: Mutex<(File, usize)>,
    /// Segments, for readers of all rows. Weak, because a file that is mapped cannot be removed on Windows.
    segments: Mutex<Vec<Weak<MappedWords>>>,
    /// Number of rows in use.
    used: AtomicU64,
    /// True after the list could not grow. The problem is logged once.
    is_full: AtomicBool,
}

/// The rows of one worker. A worker rarely waits for another one, because each takes whole segments.
#[derive(Debug)]
pub(crate) struct RowPool {
    /// Dropped in front of `list`, because Windows does not remove a file that is mapped.
    free: Mutex<Vec<FreeRow>>,
    list: Arc<InFlightList>,
}

/// A row that no request uses.
#[derive(Debug)]
struct FreeRow {
    segment: Arc<MappedWords>,
    start: usize,
}

/// The row of a request in the list, until this is dropped. It must be dropped after the request's record is
/// persisted. After a kill, the next start writes a record for every request in the list. A request that left
/// the list too early would have no record.
#[derive(Debug)]
pub(crate) struct Row {
    /// `None` only while this is dropped.
    row: Option<FreeRow>,
    pool: Arc<RowPool>,
}

impl InFlightList {
    /// Creates the list of this server, and locks it.
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
            return Err(io::Error::other("the host name is too long"));
        }
        first_row.resize(ROW_BYTES, 0);
        let dir = data.join(DIR);
        data_file::make_dir(&dir)?;
        data_file::check_dir(&dir)?;
        // Between the creation and the lock, a server that starts at the same moment may take the file for an
        // abandoned one and remove it. Then another file is created.
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

    /// Appends a segment. Returns its rows.
    fn grow(&self) -> io::Result<Vec<FreeRow>> {
        let (file, count) = &mut *lock(&self.file);
        if *count == MAX_SEGMENTS {
            return Err(io::Error::other("it has its maximum length"));
        }
        // The header fills the first row of the first segment.
        let first = usize::from(*count == 0);
        let (begin, end) = (*count * SEGMENT_BYTES, (*count + 1) * SEGMENT_BYTES);
        let skipped = first * ROW_BYTES;
        file.seek(SeekFrom::Start((begin + skipped) as u64))?;
        // The segment is written, not only made longer: with a full disk, a store to a mapped hole would raise
        // SIGBUS.
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

    /// Removes the file, unless a request is listed: that request has no record, and the next start
    /// writes it.
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

    /// Lists a request. Returns `None` if the list is full.
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
    /// Notes the model that the client named.
    pub(crate) fn note_model(&self, model: &str) {
        self.change(|words| row::write_model(words, model));
    }

    /// Notes the backend that the request is sent to, and its name of the model.
    pub(crate) fn note_backend(&self, backend: &str, served_model: Option<&str>) {
        self.change(|words| row::write_backend(words, backend, served_model));
    }

    /// Notes the number of the backend to which the request's tokens belong until its record is final.
    pub(crate) fn note_served_by(&self, backend: Option<BackendId>) {
        self.change(|words| row::write_served_by(words, backend));
    }

    /// Notes the progress of the request. Needs no lock and no system call.
    pub(crate) fn note_state(&self, state: &RequestState) {
        self.change(|words| row::write_state(words, state));
    }

    /// Notes the final record, which is persisted next.
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

/// Creates a list with a header, and locks it. Returns its path too.
fn create_file(dir: &Path, header: &[u8]) -> io::Result<(PathBuf, File)> {
    let path = dir.join(format!("{}.{LIST}", Uuid::now_v7().simple()));
    let new = path.with_extension(NEW);
    let mut file = data_file::create_new(&new)?;
    let mut create = || {
        // The lock is held before other servers can find the file.
        if !tenure::file::try_lock(&file)? {
            return Err(io::Error::other("the new file is locked already"));
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
