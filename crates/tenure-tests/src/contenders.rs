//! Ways to be the only one: ours, and those that it is held against.

use std::fs::{self, File, OpenOptions};
use std::io::{Read, Write};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use rustix::fs::{FlockOperation, flock};
use tenure::{Key, Store, Tenure};

/// An algorithm.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Contender {
    /// Ours.
    Tenure,
    /// Read the pid, see that it is dead, remove the file, create, lock, write; on release unlock
    /// and remove. What most servers with a pid file do.
    PidFile,
    /// Lock, and on release unlock and remove, without looking again: the usual mistake with
    /// `flock`.
    FlockUnlink,
}

/// What an attempt came to.
#[derive(Debug)]
pub enum Outcome {
    /// Inside, until the guard is let go.
    Inside(Guard),
    /// Somebody else is, with this pid if known.
    Refused(Option<u32>),
    /// Somebody else is, and is said to have lost its lock file.
    RefusedWithoutFile,
    /// Something else went wrong.
    Failed(String),
}

/// Held while inside.
#[derive(Debug)]
pub enum Guard {
    /// Ours.
    Tenure(Box<Tenure>),
    /// A locked file and its path.
    File(File, PathBuf),
}

impl Contender {
    /// Tries to get in.
    pub fn try_enter(self, dir: &Path) -> Outcome {
        match self {
            Self::Tenure => {
                let key = Key::name("contended").expect("a fine name");
                match Store::in_dir(dir).claim(&key).try_acquire() {
                    Ok(tenure) => Outcome::Inside(Guard::Tenure(Box::new(tenure))),
                    Err(error) => match error.holder() {
                        Some(holder) if holder.is_file_gone() => Outcome::RefusedWithoutFile,
                        Some(holder) => Outcome::Refused(holder.pid()),
                        None => Outcome::Failed(error.to_string()),
                    },
                }
            }
            Self::PidFile => pid_file(&dir.join("pid")),
            Self::FlockUnlink => flock_unlink(&dir.join("flock")),
        }
    }

    /// The name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Tenure => "tenure",
            Self::PidFile => "pid-file",
            Self::FlockUnlink => "flock-unlink",
        }
    }
}

impl FromStr for Contender {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        [Self::Tenure, Self::PidFile, Self::FlockUnlink]
            .into_iter()
            .find(|contender| contender.name() == text)
            .ok_or_else(|| format!("{text} is not a contender"))
    }
}

impl Guard {
    /// Whether our lock file is gone.
    pub fn is_lost(&self) -> bool {
        matches!(self, Self::Tenure(tenure) if tenure.lost())
    }

    /// Lets go.
    pub fn release(self) {
        match self {
            Self::Tenure(tenure) => tenure.release().expect("it lets go"),
            Self::File(file, path) => {
                let _ = flock(file.as_fd(), FlockOperation::Unlock);
                let _ = fs::remove_file(path);
            }
        }
    }
}

fn pid_file(path: &Path) -> Outcome {
    let mut text = String::new();
    if let Ok(mut file) = File::open(path) {
        let _ = file.read_to_string(&mut text);
        match text.trim().parse::<u32>() {
            Ok(pid) if tenure::process::is_running(pid) => return Outcome::Refused(Some(pid)),
            // Dead, or not readable: stale.
            _ => {
                let _ = fs::remove_file(path);
            }
        }
    }
    let Ok(mut file) = File::create(path) else {
        return Outcome::Failed("cannot create".to_owned());
    };
    if flock(&file, FlockOperation::NonBlockingLockExclusive).is_err() {
        return Outcome::Refused(None);
    }
    let _ = write!(file, "{}", std::process::id());
    Outcome::Inside(Guard::File(file, path.to_owned()))
}

fn flock_unlink(path: &Path) -> Outcome {
    let opened = OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(false)
        .open(path);
    let Ok(file) = opened else {
        return Outcome::Failed("cannot open".to_owned());
    };
    if flock(&file, FlockOperation::NonBlockingLockExclusive).is_err() {
        return Outcome::Refused(None);
    }
    Outcome::Inside(Guard::File(file, path.to_owned()))
}
