//! Directories in which lock files are stored.

use std::ffi::OsString;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use super::inspect;
use crate::error::Error;
use crate::holder::Holder;
use crate::key::{Key, absolute};
use crate::sys::file::{self, Directory};

/// Location of the lock files of a store.
#[derive(Clone, Debug)]
pub(crate) enum StoreLocation {
    /// `{temp}/{program}`, or `{temp}/{program}-{uid}` if the former belongs to another user.
    PerProgram { temp: PathBuf, program: String },
    /// A directory that the caller named.
    Fixed(PathBuf),
}

/// A directory that may contain the lock file of a key.
#[derive(Debug)]
pub(crate) enum LockDirectory {
    Open(Directory),
    /// Another user's directory that this process may not search, so its lock files are unknown.
    NoAccess {
        path: PathBuf,
        user: String,
    },
}

/// Lock file of a key that is to be acquired, and the second directory in which the key may be
/// held.
///
/// A program's store has two directories, `{program}` and `{program}-{uid}`. The lock file is
/// created in one of them, and a holder is searched in both.
#[derive(Debug)]
pub(crate) struct LockTarget {
    pub(crate) key: Key,
    pub(crate) directory: Directory,
    pub(crate) name: OsString,
    /// The directory of the store in which the lock file is not created. The key is refused if a
    /// process holds it there.
    elsewhere: Option<PathBuf>,
    /// True if the directory belongs to this user. Only then is it locked against cleaners of
    /// temporary files: in a shared directory the lock would affect other users.
    pub(crate) own_directory: bool,
    path: PathBuf,
}

impl StoreLocation {
    /// Returns the directory in which lock files would be created, without creating it. The result
    /// can change: if another user creates this directory first, another one is used.
    pub(crate) fn dir(&self) -> PathBuf {
        match self {
            Self::Fixed(dir) => dir.clone(),
            Self::PerProgram { temp, program } => {
                let temp = &absolute(temp.clone());
                let first = temp.join(program);
                let ours = match Directory::open(&first) {
                    Ok(found) => found.is_none_or(|directory| directory.is_ours()),
                    Err(error) => !is_denied(&error),
                };
                if ours {
                    first
                } else {
                    own(temp, program).unwrap_or(first)
                }
            }
        }
    }

    pub(crate) fn path_of(&self, key: &Key) -> PathBuf {
        match key.own_path() {
            Some((dir, name)) => dir.join(name),
            None => self.dir().join(key.file_name()),
        }
    }

    /// Opens the directory in which the lock file of the key is created.
    pub(crate) fn target(&self, key: &Key) -> Result<LockTarget, Error> {
        let (directory, elsewhere, own_directory) = match (key.own_path(), self) {
            (Some((dir, _)), _) => (Directory::open_parent(&dir)?, None, false),
            (None, Self::Fixed(dir)) => {
                let directory = Directory::open_or_create(dir)?;
                if !directory.is_ours_or_roots() {
                    return Err(not_ours(&directory));
                }
                let ours = directory.is_ours();
                (directory, None, ours)
            }
            (None, Self::PerProgram { temp, program }) => {
                let temp = &absolute(temp.clone());
                file::check_parent(temp)?;
                let first = unless_denied(Directory::open_or_create(&temp.join(program)))?;
                if let Some(first) = &first {
                    first.make_listable();
                }
                match (first, own(temp, program)) {
                    (Some(first), None) => (first, None, true),
                    (Some(first), Some(own)) if first.is_ours() => (first, Some(own), true),
                    (_, own) => {
                        let own = own.unwrap_or_else(|| temp.join(program));
                        let second = Directory::open_or_create(&own)?;
                        if !second.is_ours() {
                            return Err(not_ours(&second));
                        }
                        (second, Some(temp.join(program)), true)
                    }
                }
            }
        };
        let name = key.file_name();
        let path = directory.path().join(&name);
        Ok(LockTarget {
            key: key.clone(),
            directory,
            name,
            elsewhere,
            own_directory,
            path,
        })
    }

    /// Opens those directories that exist and may contain the lock file of the key. Creates none,
    /// so that reading a status leaves nothing behind.
    pub(crate) fn existing(&self, key: Option<&Key>) -> Result<Vec<LockDirectory>, Error> {
        if let Some((dir, _)) = key.and_then(Key::own_path) {
            return match Directory::open_parent(&dir) {
                Err(error) if is_kind(&error, ErrorKind::NotFound) => Ok(Vec::new()),
                opened => Ok(vec![LockDirectory::Open(opened?)]),
            };
        }
        let mut found = Vec::new();
        match self {
            Self::Fixed(dir) => found.extend(Directory::open(dir)?.map(LockDirectory::Open)),
            Self::PerProgram { temp, program } => {
                let temp = &absolute(temp.clone());
                found.extend(open_or_denied(temp.join(program))?);
                if let Some(own) = own(temp, program) {
                    found.extend(Directory::open(&own)?.map(LockDirectory::Open));
                }
            }
        }
        Ok(found)
    }
}

impl LockTarget {
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the holder of the key in the store's second directory, where this process creates no
    /// lock file. Must be called with this process's own lock held: of two processes that chose
    /// different directories, the later one then finds the lock of the earlier one.
    pub(crate) fn holder_elsewhere(&self) -> Result<Option<Box<Holder>>, Error> {
        let Some(path) = &self.elsewhere else {
            return Ok(None);
        };
        match open_or_denied(path.clone())? {
            Some(found) => inspect::held_in(&found, &self.key, &self.name),
            None => Ok(None),
        }
    }
}

fn open_or_denied(path: PathBuf) -> Result<Option<LockDirectory>, Error> {
    match Directory::open(&path) {
        Err(error) if is_denied(&error) => {
            let user = Directory::owner_of(&path);
            Ok(Some(LockDirectory::NoAccess { path, user }))
        }
        opened => Ok(opened?.map(LockDirectory::Open)),
    }
}

/// Returns `None` instead of an error for a directory that this process may not search: this
/// process cannot create lock files in it either.
fn unless_denied(opened: Result<Directory, Error>) -> Result<Option<Directory>, Error> {
    match opened {
        Err(error) if is_denied(&error) => Ok(None),
        opened => opened.map(Some),
    }
}

fn is_denied(error: &Error) -> bool {
    is_kind(error, ErrorKind::PermissionDenied)
}

fn is_kind(error: &Error, kind: ErrorKind) -> bool {
    error.io_error().is_some_and(|error| error.kind() == kind)
}

fn own(temp: &Path, program: &str) -> Option<PathBuf> {
    file::user_suffix().map(|suffix| temp.join(format!("{program}-{suffix}")))
}

fn not_ours(directory: &Directory) -> Error {
    Error::hostile(
        directory.path(),
        format!("the directory belongs to {}", directory.owner_name()),
    )
}
