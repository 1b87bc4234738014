//! Lock algorithms under test: that of tenure, and common faulty ones that show that the tests can
//! detect two owners.

use std::fs::{self, File, OpenOptions};
use std::io::{Read, Write};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use rustix::fs::{FlockOperation, flock};
use tenure::{Key, Store, Tenure};

/// A lock algorithm.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Contender {
    /// This library.
    Tenure,
    /// A pid file: read the pid, check that the process is dead, remove the file, create, lock,
    /// write; on release unlock and remove. Most servers with a pid file do this.
    PidFile,
    /// Lock, and on release unlock and remove, without checking the path after locking: the usual
    /// mistake with `flock`.
    FlockUnlink,
}

/// Outcome of an attempt to acquire the contended key with one of the lock algorithms.
#[derive(Debug)]
pub enum Outcome {
    /// The key is owned until the ownership is released.
    Acquired(Ownership),
    /// Another process owns the key, with this pid if it is known.
    Refused(Option<u32>),
    /// Another process owns the key, and the refusal reports that its lock file is gone.
    RefusedWithoutFile,
    /// The attempt failed for another reason.
    Failed(String),
}

/// Ownership of the key by one of the lock algorithms. Dropping it is not enough: some algorithms
/// remove their file on release.
#[derive(Debug)]
pub enum Ownership {
    /// A tenure.
    Tenure(Box<Tenure>),
    /// Ownership through [`Contender::PidFile`] or [`Contender::FlockUnlink`]: the locked file, and
    /// its path, which is removed on release.
    File(File, PathBuf),
}

impl Contender {
    /// Tries to acquire the key.
    pub fn try_acquire(self, dir: &Path) -> Outcome {
        match self {
            Self::Tenure => {
                let key = Key::name("contended").expect("a fine name");
                match Store::in_dir(dir).claim(&key).try_acquire() {
                    Ok(tenure) => Outcome::Acquired(Ownership::Tenure(Box::new(tenure))),
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

    /// Name of the algorithm on the command line.
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

impl Ownership {
    /// True if the lock file of a tenure is gone.
    pub fn is_lost(&self) -> bool {
        matches!(self, Self::Tenure(tenure) if tenure.lost())
    }

    /// Releases the key.
    pub fn release(self) {
        match self {
            Self::Tenure(tenure) => tenure.release().expect("the key is released"),
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
            // No running process has the pid in the pid file, or the file contains no pid. This
            // algorithm then treats the file as stale.
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
    Outcome::Acquired(Ownership::File(file, path.to_owned()))
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
    Outcome::Acquired(Ownership::File(file, path.to_owned()))
}
