//! Journals: append-only files with one checksummed line for each event.
//!
//! ```text
//! {"book":"sent","version":1,"generation":3,"before":{..},"crc":"xxxxxxxx"}   the first line
//! {..,"crc":"xxxxxxxx"}                                                       one for each event
//! ```
//!
//! A journal is bounded: when a file is full, the next file (generation) begins. The first line of
//! a file has the sums of all events in older files, and only one older file is kept.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read as _, Seek as _};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde::de::{DeserializeOwned, IgnoredAny};
use serde::{Deserialize, Serialize};

use crate::data_dir::{DataDir, write_atomically};
use crate::disk::{Disk, DiskReader};
use crate::error::Error;
use crate::line;
use crate::quarantine::{move_aside, set_aside};

const VERSION: u32 = 1;
/// Damage of a file that has the name of a journal but is not one.
pub(crate) const NO_HEAD: &str = "the first line is not the head of a journal";
/// Maximum length of the first line of a journal file, in bytes.
const MAX_HEAD_BYTES: u64 = 256 * 1024;

/// Kind of a journal. A data directory has one journal of each kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum JournalKind {
    /// Consolidated entries; written by the consolidator.
    Entries,
    /// Outcomes of batches; written by the deliverer.
    Batches,
}

/// First line of a journal file.
#[derive(Debug, Serialize, Deserialize)]
struct JournalHead<T> {
    #[serde(rename = "book")]
    journal: String,
    version: u32,
    generation: u64,
    /// Sums of all events in older files (generations) of the journal. The sums stay known when the
    /// older files are removed.
    before: T,
}

/// Version of a file, parsed alone, so that a file of another version is recognized, and not taken
/// for a damaged one, even if its other fields differ.
#[derive(Deserialize)]
struct VersionField {
    version: u32,
}

/// A line of a journal.
pub(crate) enum JournalLine<'a, T> {
    /// First line of a journal file, with the sums of all events in older files (generations),
    /// which may have been removed.
    Head(T),
    /// An event, as a JSON object.
    Event(&'a str),
    /// Damage of a line.
    Damaged(&'static str),
}

/// Position of a line in a journal: its file, the number of that file (generation) and the number
/// of the line. Messages about a damaged line name the file and the line.
pub(crate) struct Position<'a> {
    pub(crate) path: &'a Path,
    pub(crate) generation: u64,
    /// Counted from 1.
    pub(crate) line: u64,
}

/// Writer of a journal. The caller must hold a lock, so that a journal has only one writer at a
/// time.
#[derive(Debug)]
pub(crate) struct Journal {
    disk: Arc<dyn Disk>,
    dir: PathBuf,
    kind: JournalKind,
    generation: u64,
    path: PathBuf,
    file: File,
    /// True if the file is open for reading only. The next event reopens it for writing.
    is_read_only: bool,
    /// True if a failed rotation may have created the next journal file (generation). The first
    /// line of that file has the sums of all events so far: events that are added to this file now
    /// would not be in the sums.
    is_superseded: bool,
    /// Length of the file with all events that were added: the offset of the next event.
    length: u64,
    /// Length of the file at the last successful sync. Bytes after it are not durable yet.
    synced: u64,
}

/// Journal files whose sync has failed in this process, each with the length of its durable part.
/// The kernel may have dropped the bytes after the durable part, and a later sync would succeed
/// without writing them. So these bytes are not read, and the durable part is copied to a new file
/// before an event is added. Other processes need no such list: the file was truncated as well. The
/// key is the path with [`Disk::process`], because tests simulate several processes in one.
static FAILED_SYNCS: Mutex<BTreeMap<(usize, PathBuf), u64>> = Mutex::new(BTreeMap::new());

fn failed_syncs() -> MutexGuard<'static, BTreeMap<(usize, PathBuf), u64>> {
    FAILED_SYNCS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns the durable length of a file whose sync has failed; `None` for other files.
fn durable_length(disk: &dyn Disk, path: &Path) -> Option<u64> {
    let key = (disk.process(), path.to_owned());
    failed_syncs().get(&key).copied()
}

impl JournalKind {
    /// Name of the journal in file names and in the first line.
    fn name(self) -> &'static str {
        match self {
            Self::Entries => "taken",
            Self::Batches => "sent",
        }
    }

    fn dir(self, data: &DataDir) -> &Path {
        match self {
            Self::Entries => &data.usage,
            Self::Batches => &data.sent,
        }
    }

    fn file_name(self, generation: u64) -> String {
        format!("{}-{generation:08}.jsonl", self.name())
    }

    fn generation(self, name: &str) -> Option<u64> {
        let rest = name.strip_prefix(self.name())?.strip_prefix('-')?;
        let number: u64 = rest.strip_suffix(".jsonl")?.parse().ok()?;
        (self.file_name(number) == name).then_some(number)
    }

    /// Returns the generations whose names are in use, also by something that is not a journal. A
    /// new generation must not replace such a file. (promise S8)
    fn listed_generations(self, data: &DataDir) -> Result<Vec<u64>, Error> {
        let (dir, mut found) = (self.dir(data), Vec::new());
        let listed = data.disk.list(dir, &mut |name, _| {
            found.extend(name.to_str().and_then(|name| self.generation(name)));
        });
        match listed {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(found),
            listed => listed
                .map(|()| found)
                .map_err(|error| Error::new("list", dir, error)),
        }
    }

    fn path(self, data: &DataDir, generation: u64) -> PathBuf {
        self.dir(data).join(self.file_name(generation))
    }

    /// True if the first line of a file is the head of this generation. An unreadable file or
    /// another version is an error, since no events may be added to a journal whose events are
    /// unknown.
    fn has_head(self, data: &DataDir, generation: u64) -> Result<bool, Error> {
        let path = self.path(data, generation);
        let mut line = Vec::new();
        let file = DiskReader::open(&*data.disk, &path);
        let file = file.map(|file| BufReader::new(file).take(MAX_HEAD_BYTES));
        match file.and_then(|mut file| file.read_until(b'\n', &mut line)) {
            // The writer has removed this generation since it was listed, so there is no head.
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
            read => read.map_err(|error| Error::read(&path, error))?,
        };
        let position = Position {
            path: &path,
            generation,
            line: 1,
        };
        let text = line.strip_suffix(b"\n").unwrap_or_default();
        if let Ok(found) = decode::<VersionField>(&line)
            && found.version != VERSION
        {
            return Err(Error::version(&path, found.version, VERSION));
        }
        Ok(matches!(
            self.read_line::<IgnoredAny>(&position, text),
            JournalLine::Head(_)
        ))
    }

    /// Files that have the name of a generation but are not journals.
    pub(crate) fn foreign_files(self, data: &DataDir) -> Result<Vec<PathBuf>, Error> {
        let mut found = Vec::new();
        for generation in self.listed_generations(data)? {
            if !self.has_head(data, generation)? {
                found.push(self.path(data, generation));
            }
        }
        Ok(found)
    }

    /// Existing generations, oldest first.
    pub(crate) fn generations(self, data: &DataDir) -> Result<Vec<u64>, Error> {
        let mut found = Vec::new();
        for generation in self.listed_generations(data)? {
            if self.has_head(data, generation)? {
                found.push(generation);
            }
        }
        found.sort_unstable();
        Ok(found)
    }

    /// Returns the start of a line of the entry journal, up to the id of its snapshot. Successive
    /// lines with the same start are synced together, so a crash may leave all of them unsynced.
    /// Returns `None` for a line that is synced alone.
    fn snapshot_of(self, line: &[u8]) -> Option<&[u8]> {
        const FIELD: &[u8] = br#"{"snapshot":""#;
        let is_named = self == Self::Entries && line.starts_with(FIELD);
        line.get(..FIELD.len() + 36).filter(|_| is_named)
    }

    /// Calls `each` with every line of the existing generations, oldest first. An incomplete line
    /// at the end of a file is skipped: its writer may be writing it.
    pub(crate) fn read<T: DeserializeOwned>(
        self,
        data: &DataDir,
        each: &mut dyn FnMut(&Position<'_>, JournalLine<'_, T>),
    ) -> Result<(), Error> {
        for generation in self.generations(data)? {
            let path = self.dir(data).join(self.file_name(generation));
            let failed = |error| Error::read(&path, error);
            let file = match DiskReader::open(&*data.disk, &path) {
                // Skip a generation that the writer has removed since it was listed.
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                file => file.map_err(failed)?,
            };
            // Do not read the lines whose sync has failed: they are not part of the journal,
            // although they may be readable.
            let end = durable_length(&*data.disk, &path).unwrap_or(u64::MAX);
            let mut reader = BufReader::new(file.take(end));
            let (mut text, mut line) = (Vec::new(), 0);
            loop {
                text.clear();
                reader.read_until(b'\n', &mut text).map_err(failed)?;
                line += 1;
                let position = Position {
                    path: &path,
                    generation,
                    line,
                };
                match text.split_last() {
                    Some((b'\n', text)) => each(&position, self.read_line(&position, text)),
                    // The checksum of the last line matches, but another byte has replaced the
                    // newline. Report the line as damaged: an incomplete line, which its writer may
                    // still be writing, is skipped without a report.
                    Some((_, text)) if line::checked(text).is_ok() => {
                        each(
                            &position,
                            JournalLine::Damaged("the newline at its end is damaged"),
                        );
                        break;
                    }
                    _ => break,
                }
            }
        }
        Ok(())
    }

    fn read_line<'a, T: DeserializeOwned>(
        self,
        position: &Position<'_>,
        text: &'a [u8],
    ) -> JournalLine<'a, T> {
        if let Err(why) = line::checked(text) {
            return JournalLine::Damaged(why);
        }
        let Ok(text) = std::str::from_utf8(text) else {
            return JournalLine::Damaged("the line is not UTF-8");
        };
        if position.line > 1 {
            return JournalLine::Event(text);
        }
        match serde_json::from_str::<JournalHead<T>>(text) {
            Ok(head) if head.version != VERSION => {
                JournalLine::Damaged("the journal has an unknown version")
            }
            Ok(head) if head.journal == self.name() && head.generation == position.generation => {
                JournalLine::Head(head.before)
            }
            _ => JournalLine::Damaged("the first line is not the head of this journal"),
        }
    }
}

impl Journal {
    /// Opens a journal for adding events, or creates it. A torn tail is moved to `failed/`.
    pub(crate) fn open<T: Serialize + Default>(
        disk: &Arc<dyn Disk>,
        data: &DataDir,
        kind: JournalKind,
    ) -> Result<Self, Error> {
        let dir = kind.dir(data);
        for path in kind.foreign_files(data)? {
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            move_aside(&**disk, &path, &data.failed, &name, NO_HEAD)?;
        }
        let generations = kind.generations(data)?;
        let Some(generation) = generations.last().copied() else {
            return Self::begin(disk, dir, kind, 1, &T::default());
        };
        for old in generations.iter().filter(|old| **old + 1 < generation) {
            // Remove an old journal file (generation) that the last writer could not remove because
            // of a crash or an error.
            remove_old(&**disk, &kind.path(data, *old));
        }
        restore_durable(&**disk, dir, &kind.file_name(generation))?;
        if has_damage_inside(&**disk, &kind.path(data, generation))? {
            remove_damaged_lines(&**disk, data, &kind.path(data, generation))?;
        }
        let mut journal = Self::at(disk, dir, kind, generation)?;
        let unsynced = journal.truncate_torn_tail(data)?;
        // The last writer may have ended before it synced its last lines or the file's name.
        // Callers rely on the lines that they read, so the last lines are written and synced again.
        // If this sync fails, the lines are not dropped: `synced`, the length that counts as
        // durable, already includes them.
        journal.write_again(unsynced)?;
        journal.sync()?;
        disk.sync_dir(dir)
            .map_err(|error| Error::new("sync", dir, error))?;
        Ok(journal)
    }

    /// Moves the torn tail of the file (a line that a crash interrupted) to `failed/`, and
    /// truncates the file. Returns the offset of the last lines that were synced together: their
    /// sync may not have completed, so the caller writes them again.
    fn truncate_torn_tail(&mut self, data: &DataDir) -> Result<u64, Error> {
        let disk = Arc::clone(&self.disk);
        let failed = |error| Error::new("open", &self.path, error);
        let mut reader = DiskReader::open(&*disk, &self.path).map_err(failed)?;
        let extent = extent(self.kind, &mut reader).map_err(failed)?;
        let intact = extent.intact;
        if intact < extent.length {
            let mut tail = Vec::new();
            let start = io::SeekFrom::Start(intact);
            reader.file().seek(start).map_err(failed)?;
            reader.read_to_end(&mut tail).map_err(failed)?;
            let name = self.kind.file_name(self.generation);
            let name = format!("{name}-{intact}.torn");
            let why = "incomplete end of a journal: its writer was interrupted during a write";
            set_aside(&*disk, &data.failed, &name, &tail, why)?;
            disk.truncate(&self.file, intact).map_err(failed)?;
        }
        (self.length, self.synced) = (intact, intact);
        Ok(extent.unsynced)
    }

    fn begin<T: Serialize>(
        disk: &Arc<dyn Disk>,
        dir: &Path,
        kind: JournalKind,
        generation: u64,
        before: &T,
    ) -> Result<Self, Error> {
        let head = JournalHead {
            journal: kind.name().to_owned(),
            version: VERSION,
            generation,
            before,
        };
        let name = kind.file_name(generation);
        let head = encode(&head);
        write_atomically(&**disk, dir, &name, &head)?;
        disk.sync_dir(dir)
            .map_err(|error| Error::new("sync", dir, error))?;
        let mut journal = Self::at(disk, dir, kind, generation)?;
        journal.length = head.len() as u64;
        journal.synced = journal.length;
        Ok(journal)
    }

    /// Opens an existing journal file for writing. The caller must set `length` and `synced`, which
    /// are 0 here: the next event is written at the offset `length` and would overwrite the file's
    /// first line.
    fn at(
        disk: &Arc<dyn Disk>,
        dir: &Path,
        kind: JournalKind,
        generation: u64,
    ) -> Result<Self, Error> {
        let path = dir.join(kind.file_name(generation));
        // The file is not opened for appending, because Windows cannot truncate such a file.
        let file = disk.open_to_write(&path);
        Ok(Self {
            disk: Arc::clone(disk),
            dir: dir.to_owned(),
            kind,
            generation,
            file: file.map_err(|error| Error::new("open", &path, error))?,
            path,
            is_read_only: false,
            is_superseded: false,
            length: 0,
            synced: 0,
        })
    }

    pub(crate) fn generation(&self) -> u64 {
        self.generation
    }

    /// True if the next journal file (generation) may exist. Then the journal must be opened again
    /// to add events.
    pub(crate) fn is_superseded(&self) -> bool {
        self.is_superseded
    }

    /// Writes the lines from this offset on again, in their place. The process that wrote them may
    /// have failed to sync them: they are readable then, but no later sync would make them durable.
    fn write_again(&mut self, start: u64) -> Result<(), Error> {
        let failed = |error| Error::new("write to", &self.path, error);
        let mut bytes = Vec::new();
        let reader = DiskReader::open(&*self.disk, &self.path).map_err(failed)?;
        let mut file = reader.file();
        file.seek(io::SeekFrom::Start(start)).map_err(failed)?;
        let length = self.length.saturating_sub(start);
        reader
            .take(length)
            .read_to_end(&mut bytes)
            .map_err(failed)?;
        if bytes.is_empty() {
            return Ok(());
        }
        let written = self.disk.write_at(&self.file, start, &bytes);
        written.map_err(failed)
    }

    /// True if no other process has written to the journal since the last write here, and no sync
    /// has failed. Then it need not be read again. The caller must hold the lock of the journal's
    /// writer.
    pub(crate) fn is_current(&self) -> bool {
        let is_newest = |next: &Path| self.disk.exists(next).is_ok_and(|exists| !exists);
        let is_same = || {
            let (named, ours) = (self.path.metadata()?, self.file.metadata()?);
            // Compare the modification times too: they differ if another process has replaced the
            // file by one of the same length.
            Ok::<_, io::Error>(named.len() == self.length && named.modified()? == ours.modified()?)
        };
        let next = self.kind.file_name(self.generation + 1);
        let is_synced = durable_length(&*self.disk, &self.path).is_none();
        is_synced && is_newest(&self.dir.join(next)) && is_same().unwrap_or(false)
    }

    /// Reopens the file for reading only until the next event. A file that is open for writing
    /// would prevent remounting the file system read-only.
    pub(crate) fn stop_writing(&mut self) -> Result<(), Error> {
        self.reopen(true)
    }

    fn reopen(&mut self, is_read_only: bool) -> Result<(), Error> {
        if self.is_read_only != is_read_only {
            let file = if is_read_only {
                self.disk.open(&self.path)
            } else {
                self.disk.open_to_write(&self.path)
            };
            self.file = file.map_err(|error| Error::new("open", &self.path, error))?;
            self.is_read_only = is_read_only;
        }
        Ok(())
    }

    /// Adds an event. It is durable after the next [`Journal::sync`].
    pub(crate) fn add<T: Serialize>(&mut self, event: &T) -> Result<(), Error> {
        let name = self.kind.file_name(self.generation);
        if restore_durable(&*self.disk, &self.dir, &name)? {
            // A copy has replaced the journal file, and `self.file` is still the replaced file.
            // Setting `is_read_only` makes `reopen` open the copy.
            self.is_read_only = true;
            self.length = self.synced;
        }
        if self.is_superseded {
            let why = io::Error::other(
                "event not added: a failed rotation may have created the next journal file, whose \
                 sums would lack the event",
            );
            return Err(Error::new("write to", &self.path, why));
        }
        self.reopen(false)?;
        let line = encode(event);
        let added = self.disk.write_at(&self.file, self.length, &line);
        if added.is_err() {
            // The next event would overwrite the torn line, but until then the line takes space on
            // a full disk.
            let _ = self.disk.truncate(&self.file, self.length);
        }
        added.map_err(|error| Error::new("write to", &self.path, error))?;
        self.length += line.len() as u64;
        Ok(())
    }

    /// Syncs the events. After an error, events since the last sync are not part of the journal,
    /// and the caller must add them again.
    pub(crate) fn sync(&mut self) -> Result<(), Error> {
        // A file that is open for reading only has no events to sync: `add` reopens the file for
        // writing.
        if self.is_read_only {
            return Ok(());
        }
        if let Err(error) = self.disk.sync(&self.file) {
            failed_syncs().insert((self.disk.process(), self.path.clone()), self.synced);
            // Truncate the file: other processes must not read the events whose sync has failed.
            let _ = self.disk.truncate(&self.file, self.synced);
            return Err(Error::new("sync", &self.path, error));
        }
        self.synced = self.length;
        Ok(())
    }

    /// Begins the next journal file (generation), whose first line has the sums of all events so
    /// far. Removes the file in front of the current one, so that two files stay. After an error
    /// the next file may exist, and the journal must be opened again: see
    /// [`Journal::is_superseded`].
    pub(crate) fn rotate<T: Serialize>(&mut self, before: &T) -> Result<(), Error> {
        self.sync()?;
        let next = self.generation + 1;
        let old = (self.generation.checked_sub(1)).map(|old| self.kind.file_name(old));
        match Self::begin(&self.disk, &self.dir, self.kind, next, before) {
            Ok(journal) => *self = journal,
            Err(error) => {
                let path = self.dir.join(self.kind.file_name(next));
                self.is_superseded = self.disk.exists(&path).unwrap_or(true);
                return Err(error);
            }
        }
        if let Some(old) = old {
            remove_old(&*self.disk, &self.dir.join(old));
        }
        Ok(())
    }
}

/// True if an intact line follows a damaged one. A power failure may keep a line and lose one in
/// front of it.
fn has_damage_inside(disk: &dyn Disk, path: &Path) -> Result<bool, Error> {
    let failed = |error| Error::read(path, error);
    let mut reader = BufReader::new(DiskReader::open(disk, path).map_err(failed)?);
    let (mut text, mut is_damaged) = (Vec::new(), false);
    loop {
        text.clear();
        if reader.read_until(b'\n', &mut text).map_err(failed)? == 0 {
            return Ok(false);
        }
        let line = text.strip_suffix(b"\n");
        let is_intact = line.is_some_and(|line| line::checked(line).is_ok());
        if is_intact && is_damaged {
            return Ok(true);
        }
        is_damaged |= !is_intact;
    }
}

/// Replaces a file by its intact lines, and moves the damaged ones to `failed/`.
fn remove_damaged_lines(disk: &dyn Disk, data: &DataDir, path: &Path) -> Result<(), Error> {
    let failed = |error| Error::read(path, error);
    let mut reader = BufReader::new(DiskReader::open(disk, path).map_err(failed)?);
    let (mut text, mut intact, mut damaged) = (Vec::new(), Vec::new(), Vec::new());
    loop {
        text.clear();
        if reader.read_until(b'\n', &mut text).map_err(failed)? == 0 {
            break;
        }
        let line = text.strip_suffix(b"\n");
        if line.is_some_and(|line| line::checked(line).is_ok()) {
            intact.extend(&text);
        } else {
            damaged.extend(&text);
        }
    }
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let why = "damaged lines of a journal, such as a power failure leaves";
    set_aside(disk, &data.failed, &format!("{name}.torn"), &damaged, why)?;
    let dir = path.parent().unwrap_or(Path::new("."));
    write_atomically(disk, dir, &name, &intact)?;
    disk.sync_dir(dir)
        .map_err(|error| Error::new("sync", dir, error))
}

/// Replaces a file whose sync has failed by a copy of its durable part. Returns `false` for other
/// files.
fn restore_durable(disk: &dyn Disk, dir: &Path, name: &str) -> Result<bool, Error> {
    let path = dir.join(name);
    let Some(durable) = durable_length(disk, &path) else {
        return Ok(false);
    };
    let mut bytes = Vec::new();
    DiskReader::open(disk, &path)
        .and_then(|file| file.take(durable).read_to_end(&mut bytes))
        .map_err(|error| Error::read(&path, error))?;
    write_atomically(disk, dir, name, &bytes)?;
    disk.sync_dir(dir)
        .map_err(|error| Error::new("sync", dir, error))?;
    failed_syncs().remove(&(disk.process(), path));
    Ok(true)
}

/// Removes an old journal file (generation). An error is harmless: the next [`Journal::open`] tries
/// again.
fn remove_old(disk: &dyn Disk, path: &Path) {
    match disk.remove(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            tracing::debug!(%error, path = %path.display(), "cannot remove an old journal file that is not needed any more");
        }
        _ => {}
    }
}

/// Encodes a JSON object as a line with a checksum.
pub(crate) fn encode<T: Serialize>(value: &T) -> Vec<u8> {
    // Serializing strings and numbers does not fail, so an error needs no handling here.
    let mut text = serde_json::to_vec(value).unwrap_or_default();
    text.pop();
    line::with_checksum(text)
}

/// Decodes a file that consists of one line with a checksum.
pub(crate) fn decode<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, String> {
    let text = bytes
        .strip_suffix(b"\n")
        .ok_or("the last line of the file is incomplete")?;
    line::checked(text)?;
    serde_json::from_slice(text).map_err(|error| error.to_string())
}

/// Decodes a file that consists of one line with a version and a checksum. Another version is an
/// error of its own, so that the caller leaves the file of a newer program in place.
pub(crate) fn decode_version<T: DeserializeOwned>(
    path: &Path,
    bytes: &[u8],
    known: u32,
) -> Result<T, Error> {
    let found = decode::<VersionField>(bytes).map_err(|why| Error::damage(path, why))?;
    if found.version != known {
        return Err(Error::version(path, found.version, known));
    }
    decode(bytes).map_err(|why| Error::damage(path, why))
}

/// Offsets in a journal file that a writer needs to repair its end after a crash: lines that may
/// not be synced are written again, and a torn tail is removed.
#[derive(Default)]
struct JournalExtent {
    /// Start of the last group of lines that are synced together. Their sync may not have
    /// completed, so they are written again.
    unsynced: u64,
    /// End of the last intact line. Bytes after it are a torn tail.
    intact: u64,
    /// Length of the file.
    length: u64,
}

fn extent(kind: JournalKind, file: &mut DiskReader<'_>) -> io::Result<JournalExtent> {
    let (mut extent, mut last) = (JournalExtent::default(), Vec::<u8>::new());
    let (mut reader, mut text) = (BufReader::new(file), Vec::new());
    loop {
        text.clear();
        let read = reader.read_until(b'\n', &mut text)?;
        if read == 0 {
            return Ok(extent);
        }
        let start = extent.length;
        extent.length += read as u64;
        let line = text.strip_suffix(b"\n");
        if line.is_some_and(|line| line::checked(line).is_ok()) {
            extent.intact = extent.length;
            let snapshot = kind.snapshot_of(&text);
            if snapshot.is_none_or(|snapshot| snapshot != &*last) {
                extent.unsynced = start;
                last.clear();
                last.extend(snapshot.unwrap_or_default());
            }
        }
    }
}
