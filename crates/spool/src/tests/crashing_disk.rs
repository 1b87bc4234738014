//! A disk that crashes or fails at acts of one's choice, and may forget what was not synced.
//!
//! The files are real, and show what the kernel would show. Beside them the model keeps what a power
//! failure leaves: the content of each file at its last good sync, with the changes since then, and how
//! to undo each change of a name that was not synced.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use tempfile::TempDir;

use crate::disk::{Disk, RealDisk};

/// How a process ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Crash {
    /// The process ends before the act.
    Before,
    /// The process ends right after it; of what is written, half.
    After,
    /// The power fails before the act: what was not synced never happened.
    Power,
    /// The same, but every second one of those acts had reached the disk already.
    Some,
    /// The same, with the other ones.
    Others,
}

/// Every way to crash.
pub(super) const CRASHES: [Crash; 5] = [
    Crash::Before,
    Crash::After,
    Crash::Power,
    Crash::Some,
    Crash::Others,
];

/// How an act fails while the process goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fault {
    /// With this error number.
    Error(i32),
    /// The same, but the act was done.
    Late(i32),
    /// Of what is written, half is; then the disk is full.
    Short,
    /// A sync fails, and what was to be synced is not dirty any more: it can be read, and no later sync
    /// takes it to the disk.
    Unsynced,
    /// The same, and it cannot even be read any more.
    Evicted,
}

const EIO: i32 = 5;

/// Every way to fail: `EIO`, `ENOSPC`, `EROFS`, `EACCES`, `EXDEV`, `EINTR` and the others.
pub(super) const FAULTS: [Fault; 11] = [
    Fault::Error(EIO),
    Fault::Error(28),
    Fault::Error(30),
    Fault::Error(13),
    Fault::Error(18),
    Fault::Error(4),
    Fault::Late(EIO),
    Fault::Late(18),
    Fault::Short,
    Fault::Unsynced,
    Fault::Evicted,
];

/// A crash or a fault at an act.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Event {
    Crash(Crash),
    Fault(Fault),
}

/// The kind of an act.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Operation {
    Read,
    List,
    Write,
    Sync,
    Rename,
    Other,
}

impl Operation {
    /// True if it changes nothing.
    pub(super) fn is_read(self) -> bool {
        matches!(self, Self::Read | Self::List)
    }
}

impl Fault {
    /// True if it is something else than an error with the same number.
    pub(super) fn is_for(self, kind: Operation) -> bool {
        match self {
            Self::Error(18) => kind == Operation::Rename,
            Self::Error(_) => true,
            Self::Late(18) => false,
            Self::Late(_) => !kind.is_read(),
            Self::Short => kind == Operation::Write,
            Self::Unsynced | Self::Evicted => kind == Operation::Sync,
        }
    }
}

#[derive(Debug)]
pub(super) struct CrashingDisk {
    state: Mutex<State>,
    /// Where files go that were removed: the power may fail before that is true.
    graveyard: TempDir,
    /// Acts that change nothing count too.
    counts_reads: bool,
    /// Every directory is a file system of its own.
    pub(super) has_separate_file_systems: bool,
    process: AtomicUsize,
}

/// The processes so far. That of the real disk is none of them.
static PROCESSES: AtomicUsize = AtomicUsize::new(1);

fn new_process() -> usize {
    PROCESSES.fetch_add(1, Ordering::Relaxed)
}

#[derive(Debug, Default)]
struct State {
    events: Vec<(usize, Event)>,
    /// Every act of this kind fails with this error number.
    lasting: Option<(Operation, i32)>,
    /// The kind of every act so far.
    operations: Vec<Operation>,
    /// A file that cannot be opened.
    sick: Option<PathBuf>,
    /// Every directory that was listed, each time.
    listed: Vec<PathBuf>,
    has_crashed: bool,
    has_lost_power: bool,
    /// Names that were not synced: in which directory, and how to undo it; in their order.
    names: Vec<(usize, PathBuf, Undo)>,
    /// Files with content that was not synced, by inode.
    files: HashMap<u64, Content>,
    buried: usize,
    /// Counts everything that was not synced.
    changes: usize,
}

/// Bytes of a file that are on the disk, and bytes that only the kernel has.
#[derive(Debug)]
struct Content {
    /// A handle of the model's own: the lock of another one ends with that one.
    file: File,
    durable: Vec<u8>,
    changes: Vec<(usize, Change)>,
}

#[derive(Debug)]
enum Change {
    Write(u64, Vec<u8>),
    Length(u64),
}

#[derive(Debug)]
enum Undo {
    Remove(PathBuf),
    Rename(PathBuf, PathBuf),
    Both(Box<Undo>, Box<Undo>),
}

impl CrashingDisk {
    /// Crashes at the act with this number, counted from 0. Only acts that change something count.
    pub(super) fn new(crash: Crash, at: usize) -> Self {
        Self {
            counts_reads: false,
            ..Self::with(vec![(at, Event::Crash(crash))])
        }
    }

    /// Every act counts.
    pub(super) fn with(events: Vec<(usize, Event)>) -> Self {
        Self {
            state: Mutex::new(State {
                events,
                ..State::default()
            }),
            graveyard: tempfile::tempdir().unwrap(),
            counts_reads: true,
            has_separate_file_systems: false,
            process: new_process().into(),
        }
    }

    pub(super) fn has_crashed(&self) -> bool {
        self.state.lock().unwrap().has_crashed
    }

    /// A new process begins. `true`: the power had failed.
    pub(super) fn restart(&self) -> bool {
        let mut state = self.state.lock().unwrap();
        state.has_crashed = false;
        self.process.store(new_process(), Ordering::Relaxed);
        std::mem::take(&mut state.has_lost_power)
    }

    /// Every act of this kind fails from now on.
    pub(super) fn fail_all(&self, kind: Operation, number: i32) {
        self.state.lock().unwrap().lasting = Some((kind, number));
    }

    /// A file cannot be read from now on.
    pub(super) fn fail_open(&self, path: &Path) {
        self.state.lock().unwrap().sick = Some(path.to_owned());
    }

    /// From now on no act crashes or fails.
    pub(super) fn clear_faults(&self) {
        let mut state = self.state.lock().unwrap();
        state.events.clear();
        state.lasting = None;
        state.sick = None;
    }

    /// The kind of every act so far.
    pub(super) fn operations(&self) -> Vec<Operation> {
        self.state.lock().unwrap().operations.clone()
    }

    /// The number of times that a directory was listed.
    pub(super) fn listings(&self, dir: &Path) -> usize {
        let state = self.state.lock().unwrap();
        state.listed.iter().filter(|listed| *listed == dir).count()
    }

    /// The power fails now, and a new process begins.
    pub(super) fn cut_power(&self) {
        self.state.lock().unwrap().cut_power(Crash::Power);
        self.restart();
    }

    fn read<T>(&self, kind: Operation, act: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
        if self.counts_reads {
            // It may be a listing during which other acts are done: nothing is held meanwhile.
            self.act(kind, |_, _| Ok(()))?;
        }
        act()
    }

    /// Does an act, unless something is to happen at it. The act is told if only half of it is to be
    /// done.
    fn act<T>(
        &self,
        kind: Operation,
        act: impl FnOnce(&mut State, bool) -> io::Result<T>,
    ) -> io::Result<T> {
        let mut state = self.state.lock().unwrap();
        if state.has_crashed {
            return Err(crashed());
        }
        let number = state.operations.len();
        state.operations.push(kind);
        let event = state.events.iter().find(|(at, _)| *at == number);
        let Some((_, event)) = event.copied() else {
            if let Some((_, number)) = state.lasting.filter(|(failing, _)| *failing == kind) {
                return Err(io::Error::from_raw_os_error(number));
            }
            return act(&mut state, false);
        };
        match event {
            Event::Fault(Fault::Error(number)) => Err(io::Error::from_raw_os_error(number)),
            Event::Fault(Fault::Late(number)) => {
                act(&mut state, false)?;
                Err(io::Error::from_raw_os_error(number))
            }
            Event::Fault(Fault::Short) => {
                if kind == Operation::Write {
                    act(&mut state, true)?;
                }
                Err(io::ErrorKind::StorageFull.into())
            }
            // The sync itself drops the pages of its file.
            Event::Fault(Fault::Unsynced | Fault::Evicted) => {
                if kind == Operation::Sync {
                    act(&mut state, event == Event::Fault(Fault::Evicted))?;
                }
                Err(io::Error::from_raw_os_error(EIO))
            }
            Event::Crash(crash) => {
                state.has_crashed = true;
                match crash {
                    Crash::Before => {}
                    Crash::After => drop(act(&mut state, kind == Operation::Write)),
                    Crash::Power | Crash::Some | Crash::Others => state.cut_power(crash),
                }
                Err(crashed())
            }
        }
    }

    /// True if the act that is being done is a sync that fails.
    fn is_failing_sync(state: &State) -> bool {
        let number = state.operations.len() - 1;
        let lost = [Fault::Unsynced, Fault::Evicted].map(Event::Fault);
        let mut events = state.events.iter();
        events.any(|(at, event)| *at == number && lost.contains(event))
    }

    /// Writes bytes, or half of them.
    fn write(&self, file: &File, at: Option<u64>, bytes: &[u8]) -> io::Result<()> {
        self.act(Operation::Write, |state, is_half| {
            // Of the text, not of the room behind it.
            let text = bytes.trim_ascii_end().len();
            let bytes = &bytes[..if is_half { text / 2 } else { bytes.len() }];
            let start = at.unwrap_or(file.metadata()?.len());
            state.change(file, Change::Write(start, bytes.to_vec()))?;
            match at {
                Some(at) => RealDisk.write_at(file, at, bytes),
                None => RealDisk.append(file, bytes),
            }
        })
    }

    /// Keeps what is about to go.
    fn bury(&self, state: &mut State, path: &Path) -> io::Result<Undo> {
        state.buried += 1;
        let grave = self.graveyard.path().join(state.buried.to_string());
        fs::hard_link(path, &grave)?;
        Ok(Undo::Rename(grave, path.to_owned()))
    }
}

impl State {
    fn change(&mut self, file: &File, change: Change) -> io::Result<()> {
        self.changes += 1;
        let number = self.changes;
        let content = match self.files.entry(id_of(file)?) {
            std::collections::hash_map::Entry::Occupied(known) => known.into_mut(),
            std::collections::hash_map::Entry::Vacant(new) => {
                let path = by_descriptor(file);
                let file = File::options().read(true).write(true).open(&path)?;
                new.insert(Content {
                    durable: fs::read(&path)?,
                    file,
                    changes: Vec::new(),
                })
            }
        };
        content.changes.push((number, change));
        Ok(())
    }

    fn rename_is_new(&mut self, dir: &Path, undo: Undo) {
        self.changes += 1;
        let parent = dir.parent().unwrap().to_owned();
        self.names.push((self.changes, parent, undo));
    }

    fn cut_power(&mut self, crash: Crash) {
        self.has_lost_power = true;
        let is_lost = |number: usize| match crash {
            Crash::Some => number.is_multiple_of(2),
            Crash::Others => !number.is_multiple_of(2),
            _ => true,
        };
        for (number, _, undo) in std::mem::take(&mut self.names).into_iter().rev() {
            if is_lost(number) {
                undo.apply();
            }
        }
        for mut content in std::mem::take(&mut self.files).into_values() {
            let changes = std::mem::take(&mut content.changes);
            for (number, change) in changes {
                if !is_lost(number) {
                    content.apply(change);
                }
            }
            content.show_durable();
        }
    }
}

impl Content {
    /// A change has reached the disk.
    fn apply(&mut self, change: Change) {
        match change {
            Change::Length(length) => self.durable.resize(length.try_into().unwrap(), 0),
            Change::Write(at, bytes) => {
                let start = usize::try_from(at).unwrap();
                let end = start + bytes.len();
                if self.durable.len() < end {
                    self.durable.resize(end, 0);
                }
                self.durable[start..end].copy_from_slice(&bytes);
            }
        }
    }

    fn show_durable(&self) {
        self.file.set_len(0).unwrap();
        RealDisk.write_at(&self.file, 0, &self.durable).unwrap();
    }
}

impl Undo {
    fn apply(self) {
        match self {
            Self::Both(first, second) => {
                first.apply();
                second.apply();
            }
            Self::Remove(path) => drop(fs::remove_file(path)),
            // It may have been given another name by an act that is not undone.
            Self::Rename(from, to) => drop(fs::rename(from, to)),
        }
    }
}

fn crashed() -> io::Error {
    io::Error::other("crashed")
}

fn id_of(file: &File) -> io::Result<u64> {
    use std::os::unix::fs::MetadataExt;
    Ok(file.metadata()?.ino())
}

fn by_descriptor(file: &File) -> PathBuf {
    use std::os::fd::AsRawFd;
    format!("/proc/self/fd/{}", file.as_raw_fd()).into()
}

impl Disk for CrashingDisk {
    /// One act, with the sync of the directory above.
    fn make_dir(&self, dir: &Path) -> io::Result<()> {
        if dir.is_dir() {
            return Ok(());
        }
        self.act(Operation::Other, |_, _| RealDisk.make_dir(dir))
    }

    fn create(&self, path: &Path) -> io::Result<File> {
        self.act(Operation::Other, |state, _| {
            let file = RealDisk.create(path)?;
            state.rename_is_new(path, Undo::Remove(path.to_owned()));
            Ok(file)
        })
    }

    fn write_at(&self, file: &File, at: u64, bytes: &[u8]) -> io::Result<()> {
        self.write(file, Some(at), bytes)
    }

    fn append(&self, file: &File, bytes: &[u8]) -> io::Result<()> {
        self.write(file, None, bytes)
    }

    fn sync(&self, file: &File) -> io::Result<()> {
        self.act(Operation::Sync, |state, is_evicted| {
            let is_lost = Self::is_failing_sync(state);
            let Some(mut content) = state.files.remove(&id_of(file)?) else {
                return Ok(());
            };
            let changes = std::mem::take(&mut content.changes);
            if !is_lost {
                for (_, change) in changes {
                    content.apply(change);
                }
            } else if is_evicted {
                content.show_durable();
            }
            // From now on the readable content may differ from that on the disk.
            if fs::read(by_descriptor(&content.file))? != content.durable {
                state.files.insert(id_of(file)?, content);
            }
            Ok(())
        })
    }

    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        self.act(Operation::Other, |state, _| {
            state.names.retain(|(_, of, _)| of != dir);
            Ok(())
        })
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        if self.has_separate_file_systems && from.parent() != to.parent() {
            return Err(io::ErrorKind::CrossesDevices.into());
        }
        self.act(Operation::Rename, |state, _| {
            let replaced = to.exists().then(|| self.bury(state, to)).transpose()?;
            RealDisk.rename(from, to)?;
            let back = Undo::Rename(to.to_owned(), from.to_owned());
            // One act: there is always the old one or the new one.
            let back = match replaced {
                Some(old) => Undo::Both(Box::new(back), Box::new(old)),
                None => back,
            };
            state.rename_is_new(to, back);
            Ok(())
        })
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        self.act(Operation::Other, |state, _| {
            if !path.exists() {
                return Err(io::ErrorKind::NotFound.into());
            }
            let back = self.bury(state, path)?;
            state.rename_is_new(path, back);
            RealDisk.remove(path)
        })
    }

    fn truncate(&self, file: &File, length: u64) -> io::Result<()> {
        self.act(Operation::Other, |state, _| {
            state.change(file, Change::Length(length))?;
            RealDisk.truncate(file, length)
        })
    }

    fn open(&self, path: &Path) -> io::Result<File> {
        if path.exists() && self.state.lock().unwrap().sick.as_deref() == Some(path) {
            return Err(io::Error::from_raw_os_error(EIO));
        }
        self.read(Operation::Read, || RealDisk.open(path))
    }

    fn open_to_write(&self, path: &Path) -> io::Result<File> {
        self.read(Operation::Read, || RealDisk.open_to_write(path))
    }

    fn read(&self, file: &File, into: &mut [u8]) -> io::Result<usize> {
        self.read(Operation::Read, || RealDisk.read(file, into))
    }

    fn list(&self, dir: &Path, each: &mut dyn FnMut(&OsStr, bool)) -> io::Result<()> {
        self.state.lock().unwrap().listed.push(dir.to_owned());
        self.read(Operation::List, || RealDisk.list(dir, each))
    }

    fn exists(&self, path: &Path) -> io::Result<bool> {
        self.read(Operation::Read, || RealDisk.exists(path))
    }

    fn process(&self) -> usize {
        self.process.load(Ordering::Relaxed)
    }

    fn before_record(&self) -> io::Result<()> {
        self.act(Operation::Other, |_, _| Ok(()))
    }
}
