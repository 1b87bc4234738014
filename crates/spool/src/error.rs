//! Errors of staging, consolidation and delivery.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::fence::is_fenced;

const READ: &str = "read";
const USE: &str = "use";
const VERSION: &str = "interpret the format version of";

/// Error of staging, consolidation or delivery, with the operation and the path that it is about.
///
/// After an error of [`Staging::stage`](crate::Staging::stage) the record may or may not be on the
/// disk. Stage the same record again: its id prevents double counting.
#[derive(Clone)]
pub struct Error {
    operation: &'static str,
    path: PathBuf,
    source: Arc<io::Error>,
}

impl Error {
    pub(crate) fn read(path: &Path, source: io::Error) -> Self {
        Self::new(READ, path, source)
    }

    /// Error for a file whose content is invalid.
    pub(crate) fn damage(path: &Path, reason: impl Into<String>) -> Self {
        Self::new(USE, path, io::Error::other(reason.into()))
    }

    /// Error for a file of an unknown version. The file is neither moved nor changed.
    pub(crate) fn version(path: &Path, found: u32, known: u32) -> Self {
        let reason = format!(
            "the file has version {found}, this program knows {known}; use the program that wrote it"
        );
        Self::new(VERSION, path, io::Error::other(reason))
    }

    /// Error for a failed operation; `operation` is a verb that completes "cannot ... PATH".
    pub(crate) fn new(operation: &'static str, path: &Path, source: io::Error) -> Self {
        Self {
            operation,
            path: path.to_owned(),
            source: Arc::new(source),
        }
    }

    /// True if the disk is full or the user's quota is exhausted.
    pub fn is_full(&self) -> bool {
        is_full(&self.source)
    }

    /// True if the file system is read-only.
    pub fn is_read_only(&self) -> bool {
        self.source.kind() == io::ErrorKind::ReadOnlyFilesystem
    }

    /// True if a [`Fence`](crate::Fence) rejected the operation.
    pub fn is_fenced(&self) -> bool {
        is_fenced(&self.source)
    }

    /// True if a file exists and cannot be read.
    pub(crate) fn is_unreadable(&self) -> bool {
        self.operation == READ
    }

    /// True if a file was read and its content is invalid.
    pub(crate) fn is_damage(&self) -> bool {
        self.operation == USE
    }

    /// True if a file has a version that this program does not know.
    pub(crate) fn is_version(&self) -> bool {
        self.operation == VERSION
    }

    /// True if the file cannot be used now and is left in place. Other files are still processed.
    pub(crate) fn stays_in_place(&self) -> bool {
        self.is_unreadable() || self.is_version()
    }

    /// The file or directory that the error is about.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Underlying I/O error.
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
            self.operation,
            self.path.display(),
            words.to_lowercase()
        )
    }
}

/// Prints the text of `Display`, because Rust prints errors that `main` returns with `Debug`.
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
