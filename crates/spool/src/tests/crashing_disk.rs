//! A disk that crashes or fails at chosen operations, and loses unsynced data in a power failure.
//!
//! The files are real and have the content that the kernel would show. The model also stores the
//! state after a power failure: the content of each file at its last successful sync, the changes
//! since then, and for each unsynced change of a directory the operation that undoes it.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use tempfile::TempDir;

use crate::disk::{Disk, RealDisk};

/// Way in which a process ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Crash {
    /// The process ends before the operation.
    Before,
    /// The process ends right after the operation. If the operation is a write, only half of its
    /// bytes are stored.
    After,
    /// The power fails before the operation, and all unsynced changes are lost.
    Power,
    /// The power fails, and the unsynced changes with even numbers are lost.
    PowerLosesEven,
    /// The power fails, and the unsynced changes with odd numbers are lost.
    PowerLosesOdd,
}

pub(super) const CRASHES: [Crash; 5] = [
    Crash::Before,
    Crash::After,
    Crash::Power,
    Crash::PowerLosesEven,
    Crash::PowerLosesOdd,
];

/// Way in which an operation fails while the process continues.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fault {
    /// The operation is not done and returns this error number.
    Error(i32),
    /// The operation is done and returns this error number.
    Late(i32),
    /// A write stores half of its bytes and reports a full disk.
    Short,
    /// A sync fails and marks the pages clean: their content can be read, but no later sync writes
    /// it to the disk.
    Unsynced,
    /// A sync fails and drops the pages: reads return the content of the last successful sync.
    Evicted,
}

const EIO: i32 = 5;

/// Faults to test. The error numbers are `EIO`, `ENOSPC`, `EROFS`, `EACCES`, `EXDEV` and `EINTR`.
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

/// A crash or a fault at an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Event {
    Crash(Crash),
    Fault(Fault),
}

/// Kind of a disk operation.
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
    /// True if operations of this kind change nothing.
    pub(super) fn is_read(self) -> bool {
        matches!(self, Self::Read | Self::List)
    }
}

impl Fault {
    /// True if an operation of this kind can have this fault. Faults that would have the same
    /// effect as `Error` are left out.
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
    /// Links to removed files, which are restored if the power fails before the removal is synced.
    removed_files: TempDir,
    /// True if operations that change nothing are counted too.
    counts_reads: bool,
    /// True if each directory is a file system of its own, so that renames between them fail.
    pub(super) has_separate_file_systems: bool,
    process: AtomicUsize,
}

/// Number of the next simulated process. Caches are kept by process number, so a restarted process
/// must get a new one. Numbers start at 1, because the real disk is process 0.
static PROCESSES: AtomicUsize = AtomicUsize::new(1);

fn new_process() -> usize {
    PROCESSES.fetch_add(1, Ordering::Relaxed)
}

#[derive(Debug, Default)]
struct State {
    events: Vec<(usize, Event)>,
    /// Kind of the operations that all fail, and the error number that they return.
    failing: Option<(Operation, i32)>,
    operations: Vec<Operation>,
    /// Path of a file that the disk refuses to open for reading, to simulate an unreadable file.
    unreadable: Option<PathBuf>,
    /// Every directory that was listed, once for each listing, so that tests can count listings.
    listed: Vec<PathBuf>,
    has_crashed: bool,
    has_lost_power: bool,
    /// Creations, renames and removals of files since the last sync of their directory, oldest
    /// first. Each has its number, the directory, and the operation that undoes it in a power
    /// failure.
    names: Vec<(usize, PathBuf, Undo)>,
    /// Files with unsynced content, by inode.
    files: HashMap<u64, Content>,
    removed_count: usize,
    /// Number of changes of names and of content so far. It numbers the changes for crashes that
    /// lose only the unsynced changes with even or odd numbers.
    changes: usize,
}

/// Bytes of a file that are on the disk, and changes that only the kernel has.
#[derive(Debug)]
struct Content {
    /// Handle for reading the content, opened separately: a clone of the handle under test would
    /// keep the file locked after that handle is closed.
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
    /// Creates a disk that crashes at the operation with this number, counted from 0. Reads are not
    /// counted.
    pub(super) fn new(crash: Crash, at: usize) -> Self {
        Self {
            counts_reads: false,
            ..Self::with(vec![(at, Event::Crash(crash))])
        }
    }

    /// Creates a disk with a crash or fault at each operation with one of these numbers, counted
    /// from 0. Reads are counted.
    pub(super) fn with(events: Vec<(usize, Event)>) -> Self {
        Self {
            state: Mutex::new(State {
                events,
                ..State::default()
            }),
            removed_files: tempfile::tempdir().unwrap(),
            counts_reads: true,
            has_separate_file_systems: false,
            process: new_process().into(),
        }
    }

    pub(super) fn has_crashed(&self) -> bool {
        self.state.lock().unwrap().has_crashed
    }

    /// Starts a new process. Returns true if the previous one ended by a power failure.
    pub(super) fn restart(&self) -> bool {
        let mut state = self.state.lock().unwrap();
        state.has_crashed = false;
        self.process.store(new_process(), Ordering::Relaxed);
        std::mem::take(&mut state.has_lost_power)
    }

    pub(super) fn fail_all(&self, kind: Operation, number: i32) {
        self.state.lock().unwrap().failing = Some((kind, number));
    }

    pub(super) fn fail_open(&self, path: &Path) {
        self.state.lock().unwrap().unreadable = Some(path.to_owned());
    }

    pub(super) fn clear_faults(&self) {
        let mut state = self.state.lock().unwrap();
        state.events.clear();
        state.failing = None;
        state.unreadable = None;
    }

    pub(super) fn operations(&self) -> Vec<Operation> {
        self.state.lock().unwrap().operations.clone()
    }

    /// Number of times that a directory was listed.
    pub(super) fn listings(&self, dir: &Path) -> usize {
        let state = self.state.lock().unwrap();
        state.listed.iter().filter(|listed| *listed == dir).count()
    }

    /// Loses all unsynced changes and starts a new process.
    pub(super) fn cut_power(&self) {
        self.state.lock().unwrap().cut_power(Crash::Power);
        self.restart();
    }

    fn read<T>(&self, kind: Operation, operation: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
        if self.counts_reads {
            // A listing may call other operations, so the lock of the state is not held during it.
            self.perform(kind, |_, _| Ok(()))?;
        }
        operation()
    }

    /// Performs a disk operation, with the crash or fault that is planned for its number. The
    /// closure gets `true` if the operation is to have a partial effect: a write then stores half
    /// of its bytes, and a sync drops the unsynced pages.
    fn perform<T>(
        &self,
        kind: Operation,
        operation: impl FnOnce(&mut State, bool) -> io::Result<T>,
    ) -> io::Result<T> {
        let mut state = self.state.lock().unwrap();
        if state.has_crashed {
            return Err(crashed());
        }
        let number = state.operations.len();
        state.operations.push(kind);
        let event = state.events.iter().find(|(at, _)| *at == number);
        let Some((_, event)) = event.copied() else {
            if let Some((_, number)) = state.failing.filter(|(failing, _)| *failing == kind) {
                return Err(io::Error::from_raw_os_error(number));
            }
            return operation(&mut state, false);
        };
        match event {
            Event::Fault(Fault::Error(number)) => Err(io::Error::from_raw_os_error(number)),
            Event::Fault(Fault::Late(number)) => {
                operation(&mut state, false)?;
                Err(io::Error::from_raw_os_error(number))
            }
            Event::Fault(Fault::Short) => {
                if kind == Operation::Write {
                    operation(&mut state, true)?;
                }
                Err(io::ErrorKind::StorageFull.into())
            }
            Event::Fault(Fault::Unsynced | Fault::Evicted) => {
                if kind == Operation::Sync {
                    operation(&mut state, event == Event::Fault(Fault::Evicted))?;
                }
                Err(io::Error::from_raw_os_error(EIO))
            }
            Event::Crash(crash) => {
                state.has_crashed = true;
                match crash {
                    Crash::Before => {}
                    Crash::After => drop(operation(&mut state, kind == Operation::Write)),
                    Crash::Power | Crash::PowerLosesEven | Crash::PowerLosesOdd => {
                        state.cut_power(crash);
                    }
                }
                Err(crashed())
            }
        }
    }

    /// True if the current operation is a sync that fails.
    fn is_failing_sync(state: &State) -> bool {
        let number = state.operations.len() - 1;
        let lost = [Fault::Unsynced, Fault::Evicted].map(Event::Fault);
        let mut events = state.events.iter();
        events.any(|(at, event)| *at == number && lost.contains(event))
    }

    /// Writes bytes to a file at an offset, or at its end; only half of them if the planned crash
    /// or fault says so.
    fn write(&self, file: &File, at: Option<u64>, bytes: &[u8]) -> io::Result<()> {
        self.perform(Operation::Write, |state, is_half| {
            // Half of a padded write is half of its text: otherwise the text could be complete, and
            // only padding lost.
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

    /// Links a file that is about to be removed or replaced, so that it can be restored.
    fn keep_removed(&self, state: &mut State, path: &Path) -> io::Result<Undo> {
        state.removed_count += 1;
        let kept = self
            .removed_files
            .path()
            .join(state.removed_count.to_string());
        fs::hard_link(path, &kept)?;
        Ok(Undo::Rename(kept, path.to_owned()))
    }
}

impl State {
    fn change(&mut self, file: &File, change: Change) -> io::Result<()> {
        self.changes += 1;
        let number = self.changes;
        let content = match self.files.entry(inode_of(file)?) {
            std::collections::hash_map::Entry::Occupied(known) => known.into_mut(),
            std::collections::hash_map::Entry::Vacant(new) => {
                let path = path_of_descriptor(file);
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

    fn add_name_change(&mut self, dir: &Path, undo: Undo) {
        self.changes += 1;
        let parent = dir.parent().unwrap().to_owned();
        self.names.push((self.changes, parent, undo));
    }

    fn cut_power(&mut self, crash: Crash) {
        self.has_lost_power = true;
        let is_lost = |number: usize| match crash {
            Crash::PowerLosesEven => number.is_multiple_of(2),
            Crash::PowerLosesOdd => !number.is_multiple_of(2),
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
    /// Applies an unsynced change to the model of the content that survives a power failure.
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
            // The rename back fails if a later rename of the file survives the power failure. The
            // error is ignored, because the file then keeps its later name.
            Self::Rename(from, to) => drop(fs::rename(from, to)),
        }
    }
}

fn crashed() -> io::Error {
    io::Error::other("crashed")
}

fn inode_of(file: &File) -> io::Result<u64> {
    use std::os::unix::fs::MetadataExt;
    Ok(file.metadata()?.ino())
}

fn path_of_descriptor(file: &File) -> PathBuf {
    use std::os::fd::AsRawFd;
    format!("/proc/self/fd/{}", file.as_raw_fd()).into()
}

impl Disk for CrashingDisk {
    /// Creates a directory and syncs its parent, which together count as one operation.
    fn make_dir(&self, dir: &Path) -> io::Result<()> {
        if dir.is_dir() {
            return Ok(());
        }
        self.perform(Operation::Other, |_, _| RealDisk.make_dir(dir))
    }

    fn create(&self, path: &Path) -> io::Result<File> {
        self.perform(Operation::Other, |state, _| {
            let file = RealDisk.create(path)?;
            state.add_name_change(path, Undo::Remove(path.to_owned()));
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
        self.perform(Operation::Sync, |state, is_evicted| {
            let is_lost = Self::is_failing_sync(state);
            let Some(mut content) = state.files.remove(&inode_of(file)?) else {
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
            // After a failed sync the readable content may differ from the content on the disk.
            if fs::read(path_of_descriptor(&content.file))? != content.durable {
                state.files.insert(inode_of(file)?, content);
            }
            Ok(())
        })
    }

    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        self.perform(Operation::Other, |state, _| {
            state.names.retain(|(_, of, _)| of != dir);
            Ok(())
        })
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        if self.has_separate_file_systems && from.parent() != to.parent() {
            return Err(io::ErrorKind::CrossesDevices.into());
        }
        self.perform(Operation::Rename, |state, _| {
            let replaced = to
                .exists()
                .then(|| self.keep_removed(state, to))
                .transpose()?;
            RealDisk.rename(from, to)?;
            let back = Undo::Rename(to.to_owned(), from.to_owned());
            // A power failure undoes the rename and restores the replaced file together, or does
            // neither. So the name always has the old or the new file, as on a real file system.
            let back = match replaced {
                Some(old) => Undo::Both(Box::new(back), Box::new(old)),
                None => back,
            };
            state.add_name_change(to, back);
            Ok(())
        })
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        self.perform(Operation::Other, |state, _| {
            if !path.exists() {
                return Err(io::ErrorKind::NotFound.into());
            }
            let back = self.keep_removed(state, path)?;
            state.add_name_change(path, back);
            RealDisk.remove(path)
        })
    }

    fn truncate(&self, file: &File, length: u64) -> io::Result<()> {
        self.perform(Operation::Other, |state, _| {
            state.change(file, Change::Length(length))?;
            RealDisk.truncate(file, length)
        })
    }

    fn open(&self, path: &Path) -> io::Result<File> {
        if path.exists() && self.state.lock().unwrap().unreadable.as_deref() == Some(path) {
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
        self.perform(Operation::Other, |_, _| Ok(()))
    }
}
