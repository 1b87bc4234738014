//! Journals: what happened, one checked line for each event, in files that are only added to.
//!
//! ```text
//! {"book":"sent","version":1,"generation":3,"before":{..},"crc":"xxxxxxxx"}   the first line
//! {..,"crc":"xxxxxxxx"}                                                       one for each event
//! ```
//!
//! A journal is bounded: when a file is full a new generation begins, which says what all before it
//! add up to, and of the older ones only the last is kept.

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
/// The first line of a file is not longer.
const LONGEST_HEAD: u64 = 256 * 1024;

/// Which journal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum JournalKind {
    /// What was consolidated; kept by the consolidator.
    Entries,
    /// What became of the batches; kept by the deliverer.
    Batches,
}

/// The first line of a file.
#[derive(Debug, Serialize, Deserialize)]
struct JournalHead<T> {
    #[serde(rename = "book")]
    journal: String,
    version: u32,
    generation: u64,
    /// What all events before this file add up to.
    before: T,
}

/// What every file of ours says of itself.
#[derive(Deserialize)]
struct VersionField {
    version: u32,
}

/// What is read from a journal.
pub(crate) enum JournalLine<'a, T> {
    /// The first line of a file.
    Head(T),
    /// An event, as the JSON object it is.
    Event(&'a str),
    /// A line that is damaged, and why.
    Damaged(&'static str),
}

/// Where something was read.
pub(crate) struct Position<'a> {
    pub(crate) path: &'a Path,
    pub(crate) generation: u64,
    /// Counted from 1.
    pub(crate) line: u64,
}

/// A journal that is being written, by the only one who does.
#[derive(Debug)]
pub(crate) struct Journal {
    disk: Arc<dyn Disk>,
    dir: PathBuf,
    title: JournalKind,
    generation: u64,
    path: PathBuf,
    file: File,
    /// The file is open for reading only: nobody writes just now.
    is_resting: bool,
    /// The next generation may exist, and could not be opened: events of this one would not count.
    is_left: bool,
    /// Up to where it is written.
    length: u64,
    /// Up to where it is on the disk.
    synced: u64,
}

/// Files of which a sync has failed, by process, and up to where each of them is on the disk. What
/// comes after that is unknown, and a later sync would succeed and mean nothing: it is not read, and
/// such a file is copied up to there before anything is added. A new process need not know, since the
/// rest was cut off as well.
static DOUBTFUL: Mutex<BTreeMap<(usize, PathBuf), u64>> = Mutex::new(BTreeMap::new());

fn doubtful() -> MutexGuard<'static, BTreeMap<(usize, PathBuf), u64>> {
    DOUBTFUL.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Up to where a file is on the disk, if a sync of it has failed.
fn doubt(disk: &dyn Disk, path: &Path) -> Option<u64> {
    let key = (disk.process(), path.to_owned());
    doubtful().get(&key).copied()
}

impl JournalKind {
    fn word(self) -> &'static str {
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
        format!("{}-{generation:08}.jsonl", self.word())
    }

    fn generation(self, name: &str) -> Option<u64> {
        let rest = name.strip_prefix(self.word())?.strip_prefix('-')?;
        let number: u64 = rest.strip_suffix(".jsonl")?.parse().ok()?;
        (self.file_name(number) == name).then_some(number)
    }

    /// What has the name of one, be it a file or not: nothing is put in place of a thing that is not
    /// ours.
    fn numbers(self, data: &DataDir) -> Result<Vec<u64>, Error> {
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

    /// True if a file begins as it must. What does not is none of the journal's. A file that cannot be
    /// read, or is of another version, is neither: nothing is written beside it.
    fn has_head(self, data: &DataDir, generation: u64) -> Result<bool, Error> {
        let path = self.path(data, generation);
        let mut line = Vec::new();
        let file = DiskReader::open(&*data.disk, &path);
        let file = file.map(|file| BufReader::new(file).take(LONGEST_HEAD));
        match file.and_then(|mut file| file.read_until(b'\n', &mut line)) {
            // Removed since it was listed.
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
            read => read.map_err(|error| Error::read(&path, error))?,
        };
        let spot = Position {
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
            self.read_line::<IgnoredAny>(&spot, text),
            JournalLine::Head(_)
        ))
    }

    /// Files that have the name of a generation, and are none.
    pub(crate) fn foreign_files(self, data: &DataDir) -> Result<Vec<PathBuf>, Error> {
        let mut found = Vec::new();
        for generation in self.numbers(data)? {
            if !self.has_head(data, generation)? {
                found.push(self.path(data, generation));
            }
        }
        Ok(found)
    }

    /// The generations that there are, oldest first.
    pub(crate) fn generations(self, data: &DataDir) -> Result<Vec<u64>, Error> {
        let mut found = Vec::new();
        for generation in self.numbers(data)? {
            if self.has_head(data, generation)? {
                found.push(generation);
            }
        }
        found.sort_unstable();
        Ok(found)
    }

    /// The start of a line with its snapshot: lines that have the same are synced together. `None`:
    /// the line is synced alone.
    fn snapshot(self, line: &[u8]) -> Option<&[u8]> {
        const FIELD: &[u8] = br#"{"snapshot":""#;
        let is_named = self == Self::Entries && line.starts_with(FIELD);
        line.get(..FIELD.len() + 36).filter(|_| is_named)
    }

    /// Reads what is kept of the journal, oldest first. The end of the last file may be half written;
    /// it is not reported.
    pub(crate) fn read<T: DeserializeOwned>(
        self,
        data: &DataDir,
        each: &mut dyn FnMut(&Position<'_>, JournalLine<'_, T>),
    ) -> Result<(), Error> {
        for generation in self.generations(data)? {
            let path = self.dir(data).join(self.file_name(generation));
            let failed = |error| Error::read(&path, error);
            let file = match DiskReader::open(&*data.disk, &path) {
                // Older than what is kept now: removed since it was listed.
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                file => file.map_err(failed)?,
            };
            // Lines after this point are not on the disk, and the next line is written over them.
            let end = doubt(&*data.disk, &path).unwrap_or(u64::MAX);
            let mut reader = BufReader::new(file.take(end));
            let (mut text, mut line) = (Vec::new(), 0);
            loop {
                text.clear();
                reader.read_until(b'\n', &mut text).map_err(failed)?;
                line += 1;
                let spot = Position {
                    path: &path,
                    generation,
                    line,
                };
                match text.split_last() {
                    Some((b'\n', text)) => each(&spot, self.read_line(&spot, text)),
                    // A whole line, but its end is something else.
                    Some((_, text)) if line::checked(text).is_ok() => {
                        each(&spot, JournalLine::Damaged("its end is damaged"));
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
        spot: &Position<'_>,
        text: &'a [u8],
    ) -> JournalLine<'a, T> {
        if let Err(why) = line::checked(text) {
            return JournalLine::Damaged(why);
        }
        let Ok(text) = std::str::from_utf8(text) else {
            return JournalLine::Damaged("it is not UTF-8");
        };
        if spot.line > 1 {
            return JournalLine::Event(text);
        }
        match serde_json::from_str::<JournalHead<T>>(text) {
            Ok(head) if head.version != VERSION => {
                JournalLine::Damaged("it has a version we do not know")
            }
            Ok(head) if head.journal == self.word() && head.generation == spot.generation => {
                JournalLine::Head(head.before)
            }
            _ => JournalLine::Damaged("it is not the head of this file"),
        }
    }
}

impl Journal {
    /// Opens a journal to add to it, or begins it. What a crash left half written is cut off and kept.
    pub(crate) fn open<T: Serialize + Default>(
        disk: &Arc<dyn Disk>,
        data: &DataDir,
        title: JournalKind,
    ) -> Result<Self, Error> {
        let dir = title.dir(data);
        for path in title.foreign_files(data)? {
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            let why = "it does not begin as a journal does";
            move_aside(&**disk, &path, &data.failed, &name, why)?;
        }
        let generations = title.generations(data)?;
        let Some(generation) = generations.last().copied() else {
            return Self::begin(disk, dir, title, 1, &T::default());
        };
        for old in generations.iter().filter(|old| **old + 1 < generation) {
            // A crash came before it was removed.
            remove_old(&**disk, &title.path(data, *old));
        }
        renew(&**disk, dir, &title.file_name(generation))?;
        if has_holes(&**disk, &title.path(data, generation))? {
            mend(&**disk, data, &title.path(data, generation))?;
        }
        let mut journal = Self::at(disk, dir, title, generation)?;
        let failed = |error| Error::new("open", &journal.path, error);
        let mut reading = DiskReader::open(&**disk, &journal.path).map_err(failed)?;
        let JournalExtent {
            unsynced,
            whole,
            length,
        } = extent(title, &mut reading).map_err(failed)?;
        if whole < length {
            let mut tail = Vec::new();
            let start = io::SeekFrom::Start(whole);
            reading.file().seek(start).map_err(failed)?;
            reading.read_to_end(&mut tail).map_err(failed)?;
            let name = format!("{}-{whole}.torn", title.file_name(generation));
            let why = "the end of a journal whose writer was interrupted";
            set_aside(&**disk, &data.failed, &name, &tail, why)?;
            disk.truncate(&journal.file, whole).map_err(failed)?;
        }
        // The last writer may have ended before the content or the name was on the disk. The lines that
        // are read now are relied upon; if this sync fails, all of the file is copied.
        (journal.length, journal.synced) = (whole, whole);
        journal.write_again(unsynced)?;
        journal.sync()?;
        disk.sync_dir(dir)
            .map_err(|error| Error::new("sync", dir, error))?;
        Ok(journal)
    }

    fn begin<T: Serialize>(
        disk: &Arc<dyn Disk>,
        dir: &Path,
        title: JournalKind,
        generation: u64,
        before: &T,
    ) -> Result<Self, Error> {
        let head = JournalHead {
            journal: title.word().to_owned(),
            version: VERSION,
            generation,
            before,
        };
        let name = title.file_name(generation);
        let head = encode(&head);
        write_atomically(&**disk, dir, &name, &head)?;
        disk.sync_dir(dir)
            .map_err(|error| Error::new("sync", dir, error))?;
        let mut journal = Self::at(disk, dir, title, generation)?;
        journal.length = head.len() as u64;
        journal.synced = journal.length;
        Ok(journal)
    }

    /// A file that is there, to be written from its beginning.
    fn at(
        disk: &Arc<dyn Disk>,
        dir: &Path,
        title: JournalKind,
        generation: u64,
    ) -> Result<Self, Error> {
        let path = dir.join(title.file_name(generation));
        // Not to append: on Windows what is opened for that cannot be cut.
        let file = disk.open_to_write(&path);
        Ok(Self {
            disk: Arc::clone(disk),
            dir: dir.to_owned(),
            title,
            generation,
            file: file.map_err(|error| Error::new("open", &path, error))?,
            path,
            is_resting: false,
            is_left: false,
            length: 0,
            synced: 0,
        })
    }

    pub(crate) fn generation(&self) -> u64 {
        self.generation
    }

    /// True if nothing can be added until the journal is opened anew: the next generation may exist.
    pub(crate) fn is_left(&self) -> bool {
        self.is_left
    }

    /// Writes the lines from here on once more, in their place. The process that wrote them may have
    /// failed to sync them: they can be read then, and no later sync would take them to the disk.
    fn write_again(&mut self, start: u64) -> Result<(), Error> {
        let failed = |error| Error::new("write to", &self.path, error);
        let mut bytes = Vec::new();
        let reading = DiskReader::open(&*self.disk, &self.path).map_err(failed)?;
        let mut file = reading.file();
        file.seek(io::SeekFrom::Start(start)).map_err(failed)?;
        let length = self.length.saturating_sub(start);
        reading
            .take(length)
            .read_to_end(&mut bytes)
            .map_err(failed)?;
        if bytes.is_empty() {
            return Ok(());
        }
        let written = self.disk.write_at(&self.file, start, &bytes);
        written.map_err(failed)
    }

    /// True if no other process has written to the journal since, and no sync has failed: it need not be
    /// read again. The caller must be the only one who may write.
    pub(crate) fn is_current(&self) -> bool {
        let is_newest = |next: &Path| self.disk.exists(next).is_ok_and(|is_there| !is_there);
        let is_same = || {
            let (named, ours) = (self.path.metadata()?, self.file.metadata()?);
            // Another file in its place was changed at another time.
            Ok::<_, io::Error>(named.len() == self.length && named.modified()? == ours.modified()?)
        };
        let next = self.title.file_name(self.generation + 1);
        let is_good = doubt(&*self.disk, &self.path).is_none();
        is_good && is_newest(&self.dir.join(next)) && is_same().unwrap_or(false)
    }

    /// Nothing is written for a while: a file that is open for writing would keep the disk from
    /// being made read-only.
    pub(crate) fn rest(&mut self) -> Result<(), Error> {
        self.reopen(true)
    }

    fn reopen(&mut self, is_resting: bool) -> Result<(), Error> {
        if self.is_resting != is_resting {
            let file = if is_resting {
                self.disk.open(&self.path)
            } else {
                self.disk.open_to_write(&self.path)
            };
            self.file = file.map_err(|error| Error::new("open", &self.path, error))?;
            self.is_resting = is_resting;
        }
        Ok(())
    }

    /// Adds an event. It is on the disk after the next [`Journal::sync`].
    pub(crate) fn add<T: Serialize>(&mut self, event: &T) -> Result<(), Error> {
        if renew(
            &*self.disk,
            &self.dir,
            &self.title.file_name(self.generation),
        )? {
            self.is_resting = true; // What is open is the old file.
            self.length = self.synced;
        }
        if self.is_left {
            let why = io::Error::other("a new generation of it was begun");
            return Err(Error::new("write to", &self.path, why));
        }
        self.reopen(false)?;
        let line = encode(event);
        let added = self.disk.write_at(&self.file, self.length, &line);
        if added.is_err() {
            // Half a line is no harm, since the next one is written over it; but a full disk needs
            // the room.
            let _ = self.disk.truncate(&self.file, self.length);
        }
        added.map_err(|error| Error::new("write to", &self.path, error))?;
        self.length += line.len() as u64;
        Ok(())
    }

    /// Waits until everything that was added is on the disk. After an error what was added since the
    /// last sync is not part of the journal: whoever added it does so again.
    pub(crate) fn sync(&mut self) -> Result<(), Error> {
        if self.is_resting {
            return Ok(()); // Nothing was written since.
        }
        if let Err(error) = self.disk.sync(&self.file) {
            doubtful().insert((self.disk.process(), self.path.clone()), self.synced);
            // Others must not rely on it either.
            let _ = self.disk.truncate(&self.file, self.synced);
            return Err(Error::new("sync", &self.path, error));
        }
        self.synced = self.length;
        Ok(())
    }

    /// Begins the next generation: these are the sums of all up to now. Of the older ones only the
    /// last is kept. After an error the journal may have to be opened anew: see [`Journal::is_left`].
    pub(crate) fn rotate<T: Serialize>(&mut self, before: &T) -> Result<(), Error> {
        self.sync()?;
        let next = self.generation + 1;
        let old = (self.generation.checked_sub(1)).map(|old| self.title.file_name(old));
        match Self::begin(&self.disk, &self.dir, self.title, next, before) {
            Ok(journal) => *self = journal,
            Err(error) => {
                let path = self.dir.join(self.title.file_name(next));
                self.is_left = self.disk.exists(&path).unwrap_or(true);
                return Err(error);
            }
        }
        if let Some(old) = old {
            remove_old(&*self.disk, &self.dir.join(old));
        }
        Ok(())
    }
}

/// True if a file has a damaged line, and a good one after it: a power failure may have kept a line and
/// lost one that was written before it.
fn has_holes(disk: &dyn Disk, path: &Path) -> Result<bool, Error> {
    let failed = |error| Error::read(path, error);
    let mut reader = BufReader::new(DiskReader::open(disk, path).map_err(failed)?);
    let (mut text, mut is_bad) = (Vec::new(), false);
    loop {
        text.clear();
        if reader.read_until(b'\n', &mut text).map_err(failed)? == 0 {
            return Ok(false);
        }
        let line = text.strip_suffix(b"\n");
        let is_good = line.is_some_and(|line| line::checked(line).is_ok());
        if is_good && is_bad {
            return Ok(true);
        }
        is_bad |= !is_good;
    }
}

/// Puts the good lines in place of a file that has damaged ones between them, and sets those aside.
fn mend(disk: &dyn Disk, data: &DataDir, path: &Path) -> Result<(), Error> {
    let failed = |error| Error::read(path, error);
    let mut reader = BufReader::new(DiskReader::open(disk, path).map_err(failed)?);
    let (mut text, mut good, mut bad) = (Vec::new(), Vec::new(), Vec::new());
    loop {
        text.clear();
        if reader.read_until(b'\n', &mut text).map_err(failed)? == 0 {
            break;
        }
        let line = text.strip_suffix(b"\n");
        if line.is_some_and(|line| line::checked(line).is_ok()) {
            good.extend(&text);
        } else {
            bad.extend(&text);
        }
    }
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let why = "lines of a journal that a power failure lost, or that were damaged";
    set_aside(disk, &data.failed, &format!("{name}.torn"), &bad, why)?;
    let dir = path.parent().unwrap_or(Path::new("."));
    write_atomically(disk, dir, &name, &good)?;
    disk.sync_dir(dir)
        .map_err(|error| Error::new("sync", dir, error))
}

/// Puts a copy of what is on the disk for sure in place of a file of which a sync has failed. `true`:
/// that was so.
fn renew(disk: &dyn Disk, dir: &Path, name: &str) -> Result<bool, Error> {
    let path = dir.join(name);
    let Some(good) = doubt(disk, &path) else {
        return Ok(false);
    };
    let mut bytes = Vec::new();
    DiskReader::open(disk, &path)
        .and_then(|file| file.take(good).read_to_end(&mut bytes))
        .map_err(|error| Error::read(&path, error))?;
    write_atomically(disk, dir, name, &bytes)?;
    disk.sync_dir(dir)
        .map_err(|error| Error::new("sync", dir, error))?;
    doubtful().remove(&(disk.process(), path));
    Ok(true)
}

/// Removes an old generation. If that fails it is tried again when the journal is opened: what it
/// says is still true.
fn remove_old(disk: &dyn Disk, path: &Path) {
    match disk.remove(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            tracing::debug!(%error, path = %path.display(), "not removed");
        }
        _ => {}
    }
}

/// A JSON object as a line with a checksum.
pub(crate) fn encode<T: Serialize>(value: &T) -> Vec<u8> {
    // What we write down is made of texts and numbers: this does not fail.
    let mut text = serde_json::to_vec(value).unwrap_or_default();
    text.pop();
    line::with_checksum(text)
}

/// Reads one such line, which is all that a file has.
pub(crate) fn decode<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, String> {
    let text = bytes
        .strip_suffix(b"\n")
        .ok_or("it does not end in a line")?;
    line::checked(text)?;
    serde_json::from_slice(text).map_err(|error| error.to_string())
}

/// Reads a file of one line that says its version, unless it is another one: such a file is kept as
/// it is, since a newer program wrote it.
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

/// How far a file is written.
#[derive(Default)]
struct JournalExtent {
    /// The start of the last lines that were synced together.
    unsynced: u64,
    /// The end of the last line that is whole.
    whole: u64,
    length: u64,
}

fn extent(title: JournalKind, file: &mut DiskReader<'_>) -> io::Result<JournalExtent> {
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
            extent.whole = extent.length;
            let snapshot = title.snapshot(&text);
            if snapshot.is_none_or(|snapshot| snapshot != &*last) {
                extent.unsynced = start;
                last.clear();
                last.extend(snapshot.unwrap_or_default());
            }
        }
    }
}
