//! What can go wrong, said so that a person can act on it.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

use crate::holder::Holder;

/// Why a key could not be owned, looked at, released or stopped.
///
/// The text says what happened, to which path, and who holds it; [`Error::holder`] carries the
/// same as data.
///
/// ```
/// use tenure::{Key, Store};
///
/// let dir = tempfile::tempdir()?;
/// let store = Store::in_dir(dir.path());
/// let key = Key::name("backup")?;
/// let first = store.claim(&key).try_acquire()?;
///
/// let error = store.claim(&key).try_acquire().unwrap_err();
/// assert!(error.is_held());
/// assert_eq!(error.holder().and_then(|h| h.pid()), Some(std::process::id()));
/// # drop(first);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Error {
    kind: Box<Kind>,
}

#[derive(Debug)]
pub(crate) enum Kind {
    /// Somebody else owns the key. Nothing was changed.
    Held { key: String, holder: Holder },
    /// Somebody else owned the key until the deadline passed. Nothing was changed.
    TimedOut { key: String, holder: Holder },
    /// The key's text is not allowed. Nothing was touched.
    BadKey { key: String, why: &'static str },
    /// The path or its directory cannot be trusted. Nothing was followed or changed.
    Hostile { path: PathBuf, why: String },
    /// Another user may own the key, and the kernel does not show it. Nothing was changed.
    Unknown {
        key: String,
        path: PathBuf,
        user: String,
        why: String,
    },
    /// An operating system call failed.
    Io {
        act: &'static str,
        path: PathBuf,
        source: io::Error,
    },
    /// The lock was let go, but its file could not be removed.
    Leftover { path: PathBuf, source: io::Error },
    /// `stop` would not signal anyone.
    StopRefused { key: String, why: String },
    /// `stop` signalled the owner, which did not let go in time.
    StillRunning { key: String, pid: u32, why: String },
}

impl Error {
    pub(crate) fn new(kind: Kind) -> Self {
        Self {
            kind: Box::new(kind),
        }
    }

    pub(crate) fn io(act: &'static str, path: &Path, source: impl Into<io::Error>) -> Self {
        Self::new(Kind::Io {
            act,
            path: path.to_owned(),
            source: source.into(),
        })
    }

    pub(crate) fn hostile(path: &Path, why: impl Into<String>) -> Self {
        Self::new(Kind::Hostile {
            path: path.to_owned(),
            why: why.into(),
        })
    }

    /// Somebody else owns the key (also true when waiting for it timed out).
    pub fn is_held(&self) -> bool {
        matches!(*self.kind, Kind::Held { .. } | Kind::TimedOut { .. })
    }

    /// Waiting for the key, or for its owner to stop, took longer than allowed.
    pub fn is_timeout(&self) -> bool {
        matches!(
            *self.kind,
            Kind::TimedOut { .. } | Kind::StillRunning { .. }
        )
    }

    /// The path or its directory cannot be trusted: a link, another user's file, a directory
    /// that anyone may write.
    pub fn is_hostile(&self) -> bool {
        matches!(*self.kind, Kind::Hostile { .. })
    }

    /// Another user's file or directory is in the way, and the kernel does not show from here whether
    /// its owner holds the key. The file must not be removed before that is known.
    pub fn is_unknown(&self) -> bool {
        matches!(*self.kind, Kind::Unknown { .. })
    }

    /// The key itself is not well formed.
    pub fn is_bad_key(&self) -> bool {
        matches!(*self.kind, Kind::BadKey { .. })
    }

    /// `stop` signalled nobody, because no process was proven to be the owner.
    pub fn is_stop_refused(&self) -> bool {
        matches!(*self.kind, Kind::StopRefused { .. })
    }

    /// Who owns the key, when that is the reason.
    pub fn holder(&self) -> Option<&Holder> {
        match &*self.kind {
            Kind::Held { holder, .. } | Kind::TimedOut { holder, .. } => Some(holder),
            _ => None,
        }
    }

    /// The path that the error is about.
    pub fn path(&self) -> Option<&Path> {
        match &*self.kind {
            Kind::Hostile { path, .. }
            | Kind::Unknown { path, .. }
            | Kind::Io { path, .. }
            | Kind::Leftover { path, .. } => Some(path),
            Kind::Held { holder, .. } | Kind::TimedOut { holder, .. } => Some(holder.path()),
            _ => None,
        }
    }

    /// The operating system's error, when there is one.
    pub fn io_error(&self) -> Option<&io::Error> {
        match &*self.kind {
            Kind::Io { source, .. } | Kind::Leftover { source, .. } => Some(source),
            _ => None,
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &*self.kind {
            Kind::Held { key, holder } => write!(f, "{key} is held by {holder}"),
            Kind::TimedOut { key, holder } => {
                write!(
                    f,
                    "{key} did not become free in time; it is held by {holder}"
                )
            }
            Kind::BadKey { key, why } => write!(f, "{key:?} cannot be a key: {why}"),
            Kind::Hostile { path, why } => {
                write!(f, "{} is not safe to use: {why}", path.display())
            }
            Kind::Unknown {
                key,
                path,
                user,
                why,
            } => write!(
                f,
                "whether {key} is held cannot be told: {} belongs to {user}, and {why}",
                path.display()
            ),
            Kind::Io { act, path, source } => {
                write!(f, "cannot {act} {}: {}", path.display(), plain(source))
            }
            Kind::Leftover { path, source } => write!(
                f,
                "the lock is released, but its file {} could not be removed: {}",
                path.display(),
                plain(source)
            ),
            Kind::StopRefused { key, why } => write!(f, "{key} was not stopped: {why}"),
            Kind::StillRunning { key, pid, why } => {
                write!(
                    f,
                    "{key} is still held: pid {pid} was asked to stop and {why}"
                )
            }
        }
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
        match &*self.kind {
            Kind::Io { source, .. } | Kind::Leftover { source, .. } => Some(source),
            _ => None,
        }
    }
}

/// An I/O error in words, without the number that means nothing to most readers.
fn plain(error: &io::Error) -> String {
    let text = error.to_string();
    let words = text
        .split_once(" (os error")
        .map_or(text.as_str(), |(words, _)| words);
    let mut chars = words.chars();
    match chars.next() {
        Some(first) => first.to_lowercase().chain(chars).collect(),
        None => text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_io_error_names_the_act_and_the_path_and_hides_the_number() {
        let error = Error::io(
            "create",
            Path::new("/locks/a.lock"),
            io::Error::from(io::ErrorKind::PermissionDenied),
        );
        assert_eq!(
            error.to_string(),
            "cannot create /locks/a.lock: permission denied"
        );
        let error = Error::io("open", Path::new("/x"), io::Error::from_raw_os_error(13));
        assert!(!error.to_string().contains("os error"), "{error}");
    }
}
