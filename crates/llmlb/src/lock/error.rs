//! What can go wrong with a port's lock.

use std::fmt;
use std::path::PathBuf;
use std::time::SystemTime;

use tenure::{Holder, Proof};

use super::rfc3339;

/// Why the lock of a port could not be taken, read or released.
///
/// ```
/// use llmlb::lock::{LockError, ServerLock};
///
/// # let port = 10 * (std::process::id() % 6000) as u16 + 4; // nobody else's
/// let first = ServerLock::acquire(port)?;
/// let refused = ServerLock::acquire(port).unwrap_err();
/// assert_eq!(refused.holder().and_then(|holder| holder.pid()), Some(std::process::id()));
/// assert_eq!(refused.hint(), Some(format!("`llmlb stop -p {port}` stops it")));
/// # drop(first);
/// # Ok::<(), LockError>(())
/// ```
#[derive(Debug)]
#[non_exhaustive]
pub enum LockError {
    /// A server runs on the port. Nothing was changed.
    #[non_exhaustive]
    AlreadyRunning {
        /// The port.
        port: u16,
        /// The server's process, if it is proven.
        pid: Option<u32>,
        /// Since when, if the process is proven.
        started_at: Option<SystemTime>,
        /// The same in more words; [`LockError::holder`] gives it as data.
        source: tenure::Error,
    },
    /// The lock could not be taken for another reason than a running server.
    #[non_exhaustive]
    AcquireFailed {
        /// The port.
        port: u16,
        /// The reason, and the path it is about.
        source: tenure::Error,
    },
    /// The port is free again, but something about letting go went wrong.
    #[non_exhaustive]
    ReleaseFailed {
        /// The port.
        port: u16,
        /// What went wrong.
        source: tenure::Error,
    },
    /// The lock file holds no record, or not that of its holder. It stands in nobody's way.
    #[non_exhaustive]
    Corrupted {
        /// The lock file.
        path: PathBuf,
        /// What is wrong with it.
        why: String,
    },
    /// The lock file could not be read: it is another user's, or no lock file.
    #[non_exhaustive]
    ReadFailed {
        /// The lock file.
        path: PathBuf,
        /// Why not.
        why: String,
        /// What the system said, if it was asked.
        source: Option<tenure::Error>,
    },
}

impl LockError {
    pub(super) fn acquire(port: u16, source: tenure::Error) -> Self {
        if !source.is_held() {
            return Self::AcquireFailed { port, source };
        }
        // What cannot be proven is not said: a wrong number is worse than none.
        let proven = source
            .holder()
            .filter(|holder| holder.proof() == Proof::Verified);
        Self::AlreadyRunning {
            port,
            pid: proven.and_then(Holder::pid),
            started_at: proven.and_then(|holder| holder.record()?.started_at()),
            source,
        }
    }

    /// The server that is in the way, when that is the reason.
    pub fn holder(&self) -> Option<&Holder> {
        match self {
            Self::AlreadyRunning { source, .. } => source.holder(),
            _ => None,
        }
    }

    /// What to do about it.
    pub fn hint(&self) -> Option<String> {
        let Self::AlreadyRunning { port, pid, .. } = self else {
            return None;
        };
        let record = self.holder().and_then(Holder::record);
        let draining = record.and_then(|record| record.field(super::info::DRAINING)?.as_u64());
        Some(match (pid, draining, self.holder()) {
            (None, _, Some(holder)) => {
                format!("it is held by {holder}; `llmlb status -p {port}` shows more")
            }
            (_, Some(count), _) => format!(
                "it is ending, with {count} in flight; `llmlb stop -p {port}` waits until it has"
            ),
            _ => format!("`llmlb stop -p {port}` stops it"),
        })
    }
}

impl fmt::Display for LockError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::AlreadyRunning {
                port,
                pid,
                started_at,
                ..
            } => f.write_str(&already_running(*port, *pid, *started_at)),
            Self::AcquireFailed { port, source } => {
                write!(f, "cannot take the lock of port {port}: {source}")
            }
            Self::ReleaseFailed { port, source } => {
                write!(f, "releasing the lock of port {port}: {source}")
            }
            Self::Corrupted { path, why } => {
                write!(f, "{} is no record of a server: {why}", path.display())
            }
            // The system's own words name the path.
            Self::ReadFailed {
                source: Some(source),
                ..
            } => write!(f, "{source}"),
            Self::ReadFailed { path, why, .. } => {
                write!(f, "cannot read {}: {why}", path.display())
            }
        }
    }
}

impl std::error::Error for LockError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::AlreadyRunning { source, .. }
            | Self::AcquireFailed { source, .. }
            | Self::ReleaseFailed { source, .. } => Some(source),
            Self::ReadFailed { source, .. } => source.as_ref().map(|source| source as _),
            Self::Corrupted { .. } => None,
        }
    }
}

fn already_running(port: u16, pid: Option<u32>, started_at: Option<SystemTime>) -> String {
    let unknown = || "unknown".to_owned();
    let pid = pid.map_or_else(unknown, |pid| pid.to_string());
    let started_at = started_at.map_or_else(unknown, rfc3339);
    format!("Server already running on port {port} (PID: {pid}, started: {started_at})")
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn the_refusal_is_worded_exactly_so() {
        let noon = SystemTime::UNIX_EPOCH + Duration::from_millis(1_769_774_400_250);
        assert_eq!(
            already_running(32768, Some(1234), Some(noon)),
            "Server already running on port 32768 (PID: 1234, started: 2026-01-30T12:00:00.25Z)"
        );
        assert_eq!(
            already_running(8000, None, None),
            "Server already running on port 8000 (PID: unknown, started: unknown)"
        );
    }
}
