//! Errors of every operation. Each message names the key or path, the holder and the reason.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::holder::Holder;

/// Reason why a key could not be acquired, inspected, released or stopped.
///
/// The message states what happened, to which path, and which process holds the key.
/// [`Error::holder`] returns the holder as data.
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
#[cfg_attr(
    not(feature = "lease"),
    expect(dead_code, reason = "some errors occur only in lease stores")
)]
pub(crate) enum Kind {
    /// Another process owns the key. Nothing was changed.
    Held { key: String, holder: Holder },
    /// Another process owned the key until the deadline passed. Nothing was changed.
    TimedOut { key: String, holder: Holder },
    /// The text of the key is not allowed. Nothing was changed.
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
    /// The lock was released, but its file could not be removed.
    Leftover { path: PathBuf, source: io::Error },
    /// `stop` did not stop the owner, for the reason `why`. Usually no process was signalled,
    /// because none was proven to be the owner.
    StopRefused { key: String, why: String },
    /// The owner accepts no stop requests (Windows) and was not killed, because `force` is off.
    ForceRequired { key: String, why: String },
    /// `stop` signalled the owner, which did not release the key in time.
    StillRunning { key: String, pid: u32, why: String },
    /// `stop` stored a request for the owner of a lease, which did not release the key in time.
    StillHeld {
        key: String,
        holder: Holder,
        timeout: Duration,
    },
    /// The URL names no store that this build can use. Nothing was changed.
    BadStore { store: String, why: String },
    /// The TTL is not allowed. Nothing was changed.
    BadTtl { key: String, ttl: Duration },
    /// A lease store could not be reached, or refused a request.
    Store {
        act: &'static str,
        key: String,
        store: String,
        why: String,
        transient: bool,
    },
    /// The owner stopped using a lease, but the store did not confirm its release.
    Unreleased {
        key: String,
        store: String,
        why: String,
        ttl: Duration,
    },
    /// The operation exists only for lock files.
    FilesOnly { act: &'static str, store: String },
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

    /// True if another process owns the key, also after waiting for it timed out.
    pub fn is_held(&self) -> bool {
        matches!(*self.kind, Kind::Held { .. } | Kind::TimedOut { .. })
    }

    /// True if waiting for the key, or for its owner to stop, exceeded the time limit.
    pub fn is_timeout(&self) -> bool {
        matches!(
            *self.kind,
            Kind::TimedOut { .. } | Kind::StillRunning { .. } | Kind::StillHeld { .. }
        )
    }

    /// True if the store of leases could not be reached or did not respond in time. The same
    /// operation may succeed later.
    pub fn is_unreachable(&self) -> bool {
        matches!(
            *self.kind,
            Kind::Store {
                transient: true,
                ..
            } | Kind::Unreleased { .. }
        )
    }

    /// True if the URL of a store is not valid, or names a store that this build does not contain.
    pub fn is_bad_store(&self) -> bool {
        matches!(*self.kind, Kind::BadStore { .. })
    }

    /// True if the path or its directory cannot be trusted: it is a link, another user's file, or a
    /// directory that every user may write to.
    pub fn is_hostile(&self) -> bool {
        matches!(*self.kind, Kind::Hostile { .. })
    }

    /// True if a file or directory of another user is at the path, and the kernel does not show
    /// this process whether the key is held. Removing the file before that is known could admit a
    /// second owner.
    pub fn is_unknown(&self) -> bool {
        matches!(*self.kind, Kind::Unknown { .. })
    }

    /// True if the key itself, or the TTL of its lease, is not well formed.
    pub fn is_bad_key(&self) -> bool {
        matches!(*self.kind, Kind::BadKey { .. } | Kind::BadTtl { .. })
    }

    /// True if `stop` did not ask the owner to exit: no process was proven to be the owner, or the
    /// owner accepts no stop requests.
    pub fn is_stop_refused(&self) -> bool {
        matches!(
            *self.kind,
            Kind::StopRefused { .. } | Kind::ForceRequired { .. }
        )
    }

    /// True if [`Stop::force`](crate::Stop::force) would have stopped the owner: it did not exit in
    /// time, or it accepts no stop requests.
    pub fn is_force_required(&self) -> bool {
        matches!(
            *self.kind,
            Kind::StillRunning { .. } | Kind::ForceRequired { .. }
        )
    }

    /// Reason why `stop` did not end the owner, without the key: for programs that name the key in
    /// words of their own. `None` for errors other than those of `stop`.
    pub fn stop_reason(&self) -> Option<String> {
        match &*self.kind {
            Kind::StopRefused { why, .. } | Kind::ForceRequired { why, .. } => Some(why.clone()),
            Kind::StillRunning { pid, why, .. } => {
                Some(format!("pid {pid} was asked to stop and {why}"))
            }
            Kind::StillHeld {
                holder, timeout, ..
            } => Some(still_held(holder, *timeout)),
            _ => None,
        }
    }

    /// Holder of the key, if the key is held by another process.
    pub fn holder(&self) -> Option<&Holder> {
        match &*self.kind {
            Kind::Held { holder, .. }
            | Kind::TimedOut { holder, .. }
            | Kind::StillHeld { holder, .. } => Some(holder),
            _ => None,
        }
    }

    /// Path of the file or directory that caused the error.
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

    /// Error of the operating system call that failed, if a call failed.
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
                "cannot determine whether {key} is held: {} belongs to {user}, and {why}",
                path.display()
            ),
            Kind::Io { act, path, source } => {
                write!(f, "cannot {act} {}: {}", path.display(), describe(source))
            }
            Kind::Leftover { path, source } => write!(
                f,
                "the lock is released, but its file {} could not be removed: {}",
                path.display(),
                describe(source)
            ),
            Kind::StopRefused { key, why } | Kind::ForceRequired { key, why } => {
                write!(f, "{key} was not stopped: {why}")
            }
            Kind::StillRunning { key, pid, why } => {
                write!(
                    f,
                    "{key} is still held: pid {pid} was asked to stop and {why}"
                )
            }
            Kind::StillHeld {
                key,
                holder,
                timeout,
            } => write!(f, "{key} is still held: {}", still_held(holder, *timeout)),
            Kind::BadStore { store, why } => write!(f, "{store} cannot be used: {why}"),
            Kind::BadTtl { key, ttl } => write!(
                f,
                "the TTL of {} s for {key} is not allowed: a lease lasts from 1 s to 24 h",
                ttl.as_secs_f64()
            ),
            Kind::Store {
                act,
                key,
                store,
                why,
                ..
            } => write!(f, "cannot {act} {key} in {store}: {why}"),
            Kind::Unreleased {
                key,
                store,
                why,
                ttl,
            } => write!(
                f,
                "the release of {key} is not confirmed by {store} ({why}); its lease ends within \
                 {} s",
                ttl.as_secs_f64()
            ),
            Kind::FilesOnly { act, store } => write!(
                f,
                "cannot {act} in {store}: only stores of lock files on one machine can"
            ),
        }
    }
}

/// Prints the message of `Display`, because Rust prints `Debug` when `main` returns an error.
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

/// Reason why the owner of a lease is still the owner after a stop request.
fn still_held(holder: &Holder, timeout: Duration) -> String {
    format!(
        "a stop request was stored for {holder}, which had not released the key after {} s",
        timeout.as_secs_f32()
    )
}

/// Message of an I/O error, without the error number and in lower case, so that it fits into a
/// sentence.
fn describe(error: &io::Error) -> String {
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
    fn stop_reason_is_the_message_without_the_key() {
        let (key, why) = (
            "serve port 8000".to_owned(),
            "it is held, but ..".to_owned(),
        );
        let refused = Error::new(Kind::StopRefused { key, why });
        assert_eq!(refused.stop_reason().as_deref(), Some("it is held, but .."));
        assert_eq!(
            refused.to_string(),
            "serve port 8000 was not stopped: it is held, but .."
        );

        let (key, why) = (
            "serve port 8000".to_owned(),
            "had not ended after 1 s".to_owned(),
        );
        let running = Error::new(Kind::StillRunning { key, pid: 7, why });
        let reason = "pid 7 was asked to stop and had not ended after 1 s";
        assert_eq!(running.stop_reason().as_deref(), Some(reason));
        assert_eq!(
            running.to_string(),
            format!("serve port 8000 is still held: {reason}")
        );

        let other = Error::hostile(Path::new("/x"), "it is a link");
        assert_eq!(other.stop_reason(), None);
    }

    #[test]
    fn io_error_names_the_operation_and_the_path_without_the_error_number() {
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
