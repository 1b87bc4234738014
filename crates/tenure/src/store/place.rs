//! Which directory a key's file is in.

use std::ffi::OsString;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use super::inspect;
use crate::error::Error;
use crate::holder::Holder;
use crate::key::{Key, absolute};
use crate::sys::file::{self, Directory};

/// Where a store keeps its files.
#[derive(Clone, Debug)]
pub(crate) enum Place {
    /// `{temp}/{program}`, or `{temp}/{program}-{uid}` where that belongs to somebody else.
    Shared { temp: PathBuf, program: String },
    /// A directory that somebody chose.
    Given(PathBuf),
}

/// A directory in which a key's file may be.
#[derive(Debug)]
pub(crate) enum Found {
    Open(Directory),
    /// Another user's, which we may not search: what is in it cannot be told.
    Closed {
        path: PathBuf,
        user: String,
    },
}

/// The file to lock for one key, and where else the key may be held.
#[derive(Debug)]
pub(crate) struct Target {
    pub(crate) key: Key,
    pub(crate) directory: Directory,
    pub(crate) name: OsString,
    elsewhere: Option<PathBuf>,
    /// The directory is ours alone, so that cleaners may be kept off all of it.
    pub(crate) own_directory: bool,
    path: PathBuf,
}

impl Place {
    /// The directory in which files are created, as far as can be told without creating it.
    pub(crate) fn dir(&self) -> PathBuf {
        match self {
            Self::Given(dir) => dir.clone(),
            Self::Shared { temp, program } => {
                let temp = &absolute(temp.clone());
                let first = temp.join(program);
                let ours = match Directory::open(&first, false) {
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

    /// Opens the directory to create the key's file in.
    pub(crate) fn target(&self, key: &Key) -> Result<Target, Error> {
        let (directory, elsewhere, own_directory) = match (key.own_path(), self) {
            (Some((dir, _)), _) => (Directory::open_parent(&dir)?, None, false),
            (None, Self::Given(dir)) => {
                let directory = created(dir)?;
                if !directory.is_ours_or_roots() {
                    return Err(not_ours(&directory));
                }
                let ours = directory.is_ours();
                (directory, None, ours)
            }
            (None, Self::Shared { temp, program }) => {
                let temp = &absolute(temp.clone());
                file::check_parent(temp)?;
                let first = unless_closed(Directory::open(&temp.join(program), true))?;
                if let Some(first) = &first {
                    first.show_to_all();
                }
                match (first, own(temp, program)) {
                    (Some(first), None) => (first, None, true),
                    (Some(first), Some(own)) if first.is_ours() => (first, Some(own), true),
                    (_, own) => {
                        let second = created(&own.unwrap_or_else(|| temp.join(program)))?;
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
        Ok(Target {
            key: key.clone(),
            directory,
            name,
            elsewhere,
            own_directory,
            path,
        })
    }

    /// The directories in which the key's file may be, without creating any.
    pub(crate) fn existing(&self, key: Option<&Key>) -> Result<Vec<Found>, Error> {
        if let Some((dir, _)) = key.and_then(Key::own_path) {
            return match Directory::open_parent(&dir) {
                Err(error) if is_kind(&error, ErrorKind::NotFound) => Ok(Vec::new()),
                opened => Ok(vec![Found::Open(opened?)]),
            };
        }
        let mut found = Vec::new();
        match self {
            Self::Given(dir) => found.extend(Directory::open(dir, false)?.map(Found::Open)),
            Self::Shared { temp, program } => {
                let temp = &absolute(temp.clone());
                found.extend(open_or_closed(temp.join(program))?);
                if let Some(own) = own(temp, program) {
                    found.extend(Directory::open(&own, false)?.map(Found::Open));
                }
            }
        }
        Ok(found)
    }
}

impl Target {
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Who holds the key in the other directory. That is opened only now, with our own lock held:
    /// of two processes that chose differently, the later one sees the earlier one's lock.
    pub(crate) fn holder_elsewhere(&self) -> Result<Option<Box<Holder>>, Error> {
        let Some(path) = &self.elsewhere else {
            return Ok(None);
        };
        match open_or_closed(path.clone())? {
            Some(found) => inspect::held_in(&found, &self.key, &self.name),
            None => Ok(None),
        }
    }
}

fn created(path: &Path) -> Result<Directory, Error> {
    match Directory::open(path, true)? {
        Some(directory) => Ok(directory),
        None => Err(Error::hostile(
            path,
            "it vanished as soon as it was created",
        )),
    }
}

/// Opens a directory of another user, or finds that it is closed to us. `None`: there is none.
fn open_or_closed(path: PathBuf) -> Result<Option<Found>, Error> {
    match Directory::open(&path, false) {
        Err(error) if is_denied(&error) => {
            let user = Directory::owner_of(&path);
            Ok(Some(Found::Closed { path, user }))
        }
        opened => Ok(opened?.map(Found::Open)),
    }
}

/// A directory that its owner closed to us cannot be the one in which we create files.
fn unless_closed(opened: Result<Option<Directory>, Error>) -> Result<Option<Directory>, Error> {
    match opened {
        Err(error) if is_denied(&error) => Ok(None),
        other => other,
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
