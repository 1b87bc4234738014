//! The file `keys.json` of a data directory. Commands change it under a lock and replace it as a
//! whole; servers read it.

use std::fmt;
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use tenure::{Key, Store, Tenure};

use super::file::StoredKeys;
use super::hasher::NoRandomness;
use crate::sys::{Exposed, data_file};

const FILE: &str = "keys.json";
/// Name of the new version of `keys.json`, until it replaces the old version.
const NEW_FILE: &str = "keys.json.new";
/// Name of the lock file that commands hold while they change `keys.json`.
const LOCK_FILE: &str = ".keys.lock";
/// Maximum size of `keys.json`: twice the size of the largest file that this release writes. It
/// bounds the memory for a damaged file.
const MAX_SIZE: u64 = 32 << 20;
/// Maximum time for which a command waits for other commands that change `keys.json`.
const LOCK_TIMEOUT: Duration = Duration::from_secs(10);

/// The file `keys.json` of one data directory.
#[derive(Clone, Debug)]
pub(crate) struct KeyStore {
    dir: PathBuf,
}

/// Failure to read or change `keys.json`, with the file's path.
#[derive(Debug)]
pub(crate) struct KeyFileError {
    path: PathBuf,
    why: Reason,
}

#[derive(Debug)]
enum Reason {
    Io(io::Error),
    /// Users other than the owner of the data directory could have written `keys.json`, so its keys
    /// are not trusted.
    Exposed(Exposed),
    TooLarge,
    Invalid(String),
    Lock(tenure::Error),
    NoRandomness(NoRandomness),
}

impl KeyStore {
    pub(crate) fn new(data: &Path) -> Self {
        Self {
            dir: data.to_owned(),
        }
    }

    /// Returns the path of `keys.json`.
    pub(crate) fn path(&self) -> PathBuf {
        self.dir.join(FILE)
    }

    /// Reads `keys.json`. `None` if the file does not exist.
    pub(crate) fn read(&self) -> Result<Option<StoredKeys>, KeyFileError> {
        let path = self.path();
        let file = match data_file::open_trusted(&path) {
            Err(error) if data_file::is_absent(&error) => return Ok(None),
            Err(error) => return Err(self.error(Reason::Io(error))),
            Ok(Err(exposed)) => return Err(self.error(Reason::Exposed(exposed))),
            Ok(Ok(file)) => file,
        };
        let mut text = Vec::new();
        // Read one byte beyond the maximum, so that a larger file is detected without reading all
        // of it.
        let read = file.take(MAX_SIZE + 1).read_to_end(&mut text);
        read.map_err(|error| self.error(Reason::Io(error)))?;
        if text.len() as u64 > MAX_SIZE {
            return Err(self.error(Reason::TooLarge));
        }
        let keys = StoredKeys::parse(&text);
        keys.map(Some)
            .map_err(|why| self.error(Reason::Invalid(why)))
    }

    /// True if `keys.json` exists and has keys, so that clients need one. Also true for a file that
    /// cannot be read: the server then does not start.
    pub(crate) fn requires_keys(&self) -> bool {
        match self.read() {
            Ok(keys) => keys.is_some_and(|keys| !keys.keys.is_empty()),
            Err(_) => true,
        }
    }

    /// Changes the keys under a lock, so that no change of a concurrent command is lost. Creates
    /// the data directory and `keys.json` if they are missing. If `edit` fails, nothing is changed.
    pub(crate) fn change<T, E>(
        &self,
        verb: &str,
        edit: impl FnOnce(&mut StoredKeys) -> Result<T, E>,
    ) -> Result<Result<T, E>, KeyFileError> {
        let io = |error| self.error(Reason::Io(error));
        data_file::make_dir(&self.dir).map_err(io)?;
        let _lock = self.lock(verb)?;
        let keys = match self.read()? {
            Some(keys) => Ok(keys),
            None => StoredKeys::new(),
        };
        let mut keys = keys.map_err(|error| self.error(Reason::NoRandomness(error)))?;
        let edited = edit(&mut keys);
        if edited.is_ok() {
            self.replace(&keys).map_err(io)?;
        }
        Ok(edited)
    }

    fn lock(&self, verb: &str) -> Result<Tenure, KeyFileError> {
        let lock = |error| self.error(Reason::Lock(error));
        let key = Key::file(self.dir.join(LOCK_FILE)).map_err(lock)?;
        let claim = Store::default().claim(&key).verb(verb);
        claim.acquire_within(LOCK_TIMEOUT, |_| {}).map_err(lock)
    }

    /// Replaces `keys.json`. A crash leaves the complete old file or the complete new one.
    fn replace(&self, keys: &StoredKeys) -> io::Result<()> {
        let (path, new) = (self.path(), self.dir.join(NEW_FILE));
        let text = keys.format()?;
        // Remove the new file of a command that crashed. No running command uses it, because this
        // command holds the lock.
        match std::fs::remove_file(&new) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let written = (|| {
            let mut file = data_file::create_for_owner(&new)?;
            file.write_all(&text)?;
            file.sync_all()?;
            drop(file);
            std::fs::rename(&new, &path)
        })();
        if written.is_err() {
            let _ = std::fs::remove_file(&new);
            return written;
        }
        data_file::sync_dir(&self.dir)
    }

    fn error(&self, why: Reason) -> KeyFileError {
        let path = self.path();
        KeyFileError { path, why }
    }
}

impl KeyFileError {
    /// Returns a hint with a command that may solve the problem, if there is one.
    pub(crate) fn hint(&self) -> Option<String> {
        let path = self.path.display();
        match &self.why {
            Reason::Exposed(Exposed::Others | Exposed::Group(_)) => {
                Some(format!("prevent that: chmod 600 {path}"))
            }
            Reason::Exposed(Exposed::Directory(directory)) => {
                Some(format!("prevent that: chmod o-w {}", directory.display()))
            }
            Reason::Exposed(_) | Reason::TooLarge | Reason::Invalid(_) => Some(format!(
                "restore the file from a backup, or remove it and create new keys: rm {path}"
            )),
            Reason::Io(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                let owner = crate::sys::users::owner_of(&self.path);
                let owner = owner.map_or_else(String::new, |owner| format!(", {owner}"));
                Some(format!(
                    "run the command as the owner of the data directory{owner}, or as root"
                ))
            }
            Reason::Io(_) | Reason::Lock(_) | Reason::NoRandomness(_) => None,
        }
    }
}

impl fmt::Display for KeyFileError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let path = self.path.display();
        match &self.why {
            Reason::Io(error) => {
                let why = error.to_string();
                // Remove the system's error number, such as ` (os error 13)`, which does not help
                // operators.
                let why = why.split(" (os error").next().unwrap_or_default();
                write!(f, "cannot read or write {path}: {why}")
            }
            Reason::Exposed(Exposed::Owner(user)) => {
                write!(f, "{path}: the file belongs to another user, {user}")
            }
            Reason::Exposed(Exposed::Group(group)) => {
                write!(f, "{path}: the file's group (gid {group}) may write it")
            }
            Reason::Exposed(Exposed::Directory(directory)) => write!(
                f,
                "{path}: other users may replace the file in {}",
                directory.display()
            ),
            Reason::Exposed(_) => write!(f, "{path}: other users may write the file"),
            Reason::TooLarge => write!(f, "{path}: the file is larger than {} MiB", MAX_SIZE >> 20),
            Reason::Invalid(why) => write!(f, "{path}: {why}"),
            Reason::Lock(error) => write!(f, "cannot lock the keys of the data directory: {error}"),
            Reason::NoRandomness(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for KeyFileError {}
