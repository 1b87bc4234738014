//! What can go wrong, said so that a person can act on it.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

const READ: &str = "read";
const USE: &str = "use";
const VERSION: &str = "use this version of";

/// Why something could not be staged, consolidated or delivered.
///
/// After an error of [`Staging::stage`](crate::Staging::stage) it is unknown whether the record is
/// on the disk: stage the same record again, its id keeps it from being counted twice.
#[derive(Clone)]
pub struct Error {
    act: &'static str,
    path: PathBuf,
    source: Arc<io::Error>,
}

impl Error {
    pub(crate) fn read(path: &Path, source: io::Error) -> Self {
        Self::new(READ, path, source)
    }

    /// What is wrong with it, in words.
    pub(crate) fn damage(path: &Path, what: impl Into<String>) -> Self {
        Self::new(USE, path, io::Error::other(what.into()))
    }

    /// A file of a version that this program does not know. It is kept as it is.
    pub(crate) fn version(path: &Path, found: u32, known: u32) -> Self {
        let what = format!(
            "its version is {found}, this program knows {known}; use the program that wrote it"
        );
        Self::new(VERSION, path, io::Error::other(what))
    }

    pub(crate) fn new(act: &'static str, path: &Path, source: io::Error) -> Self {
        Self {
            act,
            path: path.to_owned(),
            source: Arc::new(source),
        }
    }

    /// The disk, or the user's share of it, is full.
    pub fn is_full(&self) -> bool {
        is_full(&self.source)
    }

    /// The disk can only be read.
    pub fn is_read_only(&self) -> bool {
        self.source.kind() == io::ErrorKind::ReadOnlyFilesystem
    }

    /// Something is there, and cannot be read; others may be.
    pub(crate) fn is_unreadable(&self) -> bool {
        self.act == READ
    }

    /// Something could be read, and makes no sense.
    pub(crate) fn is_damage(&self) -> bool {
        self.act == USE
    }

    /// A file of a version that this program does not know.
    pub(crate) fn is_version(&self) -> bool {
        self.act == VERSION
    }

    /// A file that cannot be used now and is left where it is; others can be.
    pub(crate) fn stays_in_place(&self) -> bool {
        self.is_unreadable() || self.is_version()
    }

    /// The file or directory that the error is about.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// What the system said.
    pub fn io_error(&self) -> &io::Error {
        &self.source
    }
}

pub(crate) fn is_full(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded
    )
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = self.source.to_string();
        let words = text
            .split_once(" (os error")
            .map_or(&*text, |(words, _)| words);
        write!(
            f,
            "cannot {} {}: {}",
            self.act,
            self.path.display(),
            words.to_lowercase()
        )
    }
}

/// The same text as `Display`: this is what people see when `main` returns an error.
impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&*self.source)
    }
}
