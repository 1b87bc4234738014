//! A disk that crashes at an act of one's choice, and may forget what was not synced.

use std::collections::HashMap;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use tempfile::TempDir;

use crate::disk::{Disk, RealDisk};

/// What happens at the crash.
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

#[derive(Debug)]
pub(super) struct CrashingDisk {
    crash: Crash,
    state: Mutex<State>,
    /// Where files go that were removed: the power may fail before that is true.
    graveyard: TempDir,
}

#[derive(Debug)]
struct State {
    acts_left: usize,
    crashed: bool,
    /// What to do to be back at the last sync, by what was not synced.
    undo: Vec<(Unsynced, Undo)>,
    paths: HashMap<u64, PathBuf>,
    buried: usize,
}

#[derive(Debug, PartialEq, Eq)]
enum Unsynced {
    Content(u64),
    Names(PathBuf),
}

#[derive(Debug)]
enum Undo {
    Remove(PathBuf),
    Rename(PathBuf, PathBuf),
    Content(u64, Vec<u8>),
    Both(Box<Undo>, Box<Undo>),
}

impl CrashingDisk {
    /// Crashes at the act with this number, counted from 0.
    pub(super) fn new(crash: Crash, at: usize) -> Self {
        Self {
            crash,
            state: Mutex::new(State {
                acts_left: at,
                crashed: false,
                undo: Vec::new(),
                paths: HashMap::new(),
                buried: 0,
            }),
            graveyard: tempfile::tempdir().unwrap(),
        }
    }

    pub(super) fn has_crashed(&self) -> bool {
        self.state.lock().unwrap().crashed
    }

    /// Does an act, unless the time for the crash has come.
    fn act<T>(&self, act: impl FnOnce(&mut State) -> io::Result<T>) -> io::Result<T> {
        let mut state = self.state.lock().unwrap();
        if state.crashed {
            return Err(crashed());
        }
        if state.acts_left > 0 {
            state.acts_left -= 1;
            return act(&mut state);
        }
        state.crashed = true;
        match self.crash {
            Crash::Before => {}
            Crash::After => drop(act(&mut state)),
            Crash::Power | Crash::Some | Crash::Others => {
                let undo = std::mem::take(&mut state.undo);
                for (number, (_, undo)) in undo.into_iter().enumerate().rev() {
                    let is_even = number % 2 == 0;
                    let is_lost = match self.crash {
                        Crash::Some => is_even,
                        Crash::Others => !is_even,
                        _ => true,
                    };
                    if is_lost {
                        undo.apply(&state.paths);
                    }
                }
            }
        }
        Err(crashed())
    }

    /// Writes bytes, or half of them if it is the last act.
    fn write(
        &self,
        file: &File,
        bytes: &[u8],
        write: impl FnOnce(&[u8]) -> io::Result<()>,
    ) -> io::Result<()> {
        self.act(|state| {
            state.remember(file)?;
            // Of the text, not of the room behind it.
            let text = bytes.trim_ascii_end().len();
            let length = if self.is_last(state) {
                text / 2
            } else {
                bytes.len()
            };
            write(&bytes[..length])
        })
    }

    /// Keeps a copy of what is about to go.
    fn bury(&self, state: &mut State, path: &Path) -> io::Result<Undo> {
        state.buried += 1;
        let grave = self.graveyard.path().join(state.buried.to_string());
        fs::copy(path, &grave)?;
        Ok(Undo::Rename(grave, path.to_owned()))
    }

    fn is_last(&self, state: &State) -> bool {
        state.crashed && self.crash == Crash::After
    }
}

impl State {
    /// What a file has, before that changes.
    fn remember(&mut self, file: &File) -> io::Result<()> {
        let id = id_of(file)?;
        let path = self.paths.entry(id).or_insert_with(|| path_of(file));
        let before = Undo::Content(id, fs::read(path)?);
        self.undo.push((Unsynced::Content(id), before));
        Ok(())
    }
}

impl Undo {
    fn apply(self, paths: &HashMap<u64, PathBuf>) {
        match self {
            Self::Both(first, second) => {
                first.apply(paths);
                second.apply(paths);
            }
            Self::Remove(path) => drop(fs::remove_file(path)),
            // It may have been given another name by an act that is not undone.
            Self::Rename(from, to) => drop(fs::rename(from, to)),
            Self::Content(id, bytes) => {
                if let Some(path) = paths.get(&id).filter(|path| path.exists()) {
                    fs::write(path, bytes).unwrap();
                }
            }
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

fn parent(path: &Path) -> Unsynced {
    Unsynced::Names(path.parent().unwrap().to_owned())
}

/// The path of a file that was opened in another way.
fn path_of(file: &File) -> PathBuf {
    use std::os::fd::AsRawFd;
    fs::read_link(format!("/proc/self/fd/{}", file.as_raw_fd())).unwrap()
}

impl Disk for CrashingDisk {
    fn make_dir(&self, dir: &Path) -> io::Result<()> {
        RealDisk.make_dir(dir)
    }

    fn create(&self, path: &Path) -> io::Result<File> {
        self.act(|state| {
            let file = RealDisk.create(path)?;
            state
                .undo
                .push((parent(path), Undo::Remove(path.to_owned())));
            state.paths.insert(id_of(&file)?, path.to_owned());
            Ok(file)
        })
    }

    fn write_at(&self, file: &File, at: u64, bytes: &[u8]) -> io::Result<()> {
        self.write(file, bytes, |bytes| RealDisk.write_at(file, at, bytes))
    }

    fn append(&self, file: &File, bytes: &[u8]) -> io::Result<()> {
        self.write(file, bytes, |bytes| RealDisk.append(file, bytes))
    }

    fn sync(&self, file: &File) -> io::Result<()> {
        self.act(|state| {
            let id = id_of(file)?;
            state
                .undo
                .retain(|(what, _)| *what != Unsynced::Content(id));
            Ok(())
        })
    }

    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        self.act(|state| {
            let names = Unsynced::Names(dir.to_owned());
            state.undo.retain(|(what, _)| *what != names);
            Ok(())
        })
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.act(|state| {
            let replaced = to.exists().then(|| self.bury(state, to)).transpose()?;
            RealDisk.rename(from, to)?;
            let back = Undo::Rename(to.to_owned(), from.to_owned());
            // One act: there is always the old one or the new one.
            let back = match replaced {
                Some(old) => Undo::Both(Box::new(back), Box::new(old)),
                None => back,
            };
            state.undo.push((parent(to), back));
            for path in state.paths.values_mut().filter(|path| *path == from) {
                to.clone_into(path);
            }
            Ok(())
        })
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        self.act(|state| {
            if !path.exists() {
                return Err(io::ErrorKind::NotFound.into());
            }
            let back = self.bury(state, path)?;
            state.undo.push((parent(path), back));
            RealDisk.remove(path)
        })
    }

    fn truncate(&self, file: &File, length: u64) -> io::Result<()> {
        self.act(|state| {
            state.remember(file)?;
            RealDisk.truncate(file, length)
        })
    }

    fn before_record(&self) -> io::Result<()> {
        self.act(|_| Ok(()))
    }
}
