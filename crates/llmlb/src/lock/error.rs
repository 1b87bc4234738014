//! Errors of acquiring, reading and releasing the lock of a port.

use std::fmt;
use std::path::PathBuf;
use std::time::SystemTime;

use tenure::{Holder, Proof};

use super::rfc3339;

/// Failure to acquire, read or release the lock of a port.
///
/// ```
/// use llmlb::lock::{LockError, ServerLock};
///
/// # let port = 10 * (std::process::id() % 6000) as u16 + 4; // of this example alone
/// let first = ServerLock::acquire(port)?;
/// let refused = ServerLock::acquire(port).unwrap_err();
/// assert_eq!(refused.holder().and_then(|holder| holder.pid()), Some(std::process::id()));
/// assert_eq!(refused.hint(), Some(format!("stop it with `llmlb stop -p {port}`")));
/// # drop(first);
/// # Ok::<(), LockError>(())
/// ```
#[derive(Debug)]
#[non_exhaustive]
pub enum LockError {
    /// A server already runs on the port. The lock file is unchanged.
    #[non_exhaustive]
    AlreadyRunning {
        /// The port.
        port: u16,
        /// Process id of the server, if the kernel confirms that it holds the lock.
        pid: Option<u32>,
        /// Start time of the server, if its process is confirmed.
        started_at: Option<SystemTime>,
        /// Error of the lock library. [`LockError::holder`] returns the holder that this error
        /// names.
        source: tenure::Error,
    },
    /// The lock could not be acquired, although no server runs on the port.
    #[non_exhaustive]
    AcquireFailed {
        /// The port.
        port: u16,
        /// Reason and path.
        source: tenure::Error,
    },
    /// The port is free again, but the lock file could not be removed or updated.
    #[non_exhaustive]
    ReleaseFailed {
        /// The port.
        port: u16,
        /// Error of the lock library, with the path of the lock file.
        source: tenure::Error,
    },
    /// The lock file has no valid lock record, or a lock record that does not name the process
    /// that holds the lock. Such a file does not block a new server.
    #[non_exhaustive]
    Corrupted {
        /// The lock file.
        path: PathBuf,
        /// Defect of the lock record.
        why: String,
    },
    /// The lock file could not be read: it belongs to another user, or is no regular file.
    #[non_exhaustive]
    ReadFailed {
        /// The lock file.
        path: PathBuf,
        /// Reason.
        why: String,
        /// Error of the lock library, if reading the file itself failed.
        source: Option<tenure::Error>,
    },
}

impl LockError {
    pub(super) fn acquire(port: u16, source: tenure::Error) -> Self {
        if !source.is_held() {
            return Self::AcquireFailed { port, source };
        }
        // Name only a confirmed process: a wrong pid could make an operator kill another program.
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

    /// Returns the running server that holds the lock of the port. `None` if the error is not
    /// [`LockError::AlreadyRunning`].
    pub fn holder(&self) -> Option<&Holder> {
        match self {
            Self::AlreadyRunning { source, .. } => source.holder(),
            _ => None,
        }
    }

    /// Returns a hint with the command to type next, for an operator whose server could not start.
    pub fn hint(&self) -> Option<String> {
        let Self::AlreadyRunning { port, pid, .. } = self else {
            return None;
        };
        let record = self.holder().and_then(Holder::record);
        let draining = record.and_then(|record| record.field(super::info::DRAINING)?.as_u64());
        Some(match (pid, draining, self.holder()) {
            (None, _, Some(holder)) => {
                format!("the lock is held by {holder}; show more with `llmlb status -p {port}`")
            }
            (_, Some(count), _) => format!(
                "the server is draining, with {count} in flight; wait for its end with `llmlb stop -p {port}`"
            ),
            _ => format!("stop it with `llmlb stop -p {port}`"),
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
                write!(f, "cannot acquire the lock of port {port}: {source}")
            }
            Self::ReleaseFailed { port, source } => {
                write!(
                    f,
                    "cannot release the lock of port {port} cleanly: {source}"
                )
            }
            Self::Corrupted { path, why } => {
                write!(
                    f,
                    "lock file {} has no valid lock record: {why}",
                    path.display()
                )
            }
            // Omit the path of the lock file here: the text of `source` already names it.
            Self::ReadFailed {
                source: Some(source),
                ..
            } => write!(f, "{source}"),
            Self::ReadFailed { path, why, .. } => {
                write!(f, "cannot read lock file {}: {why}", path.display())
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
    fn already_running_message_has_the_documented_wording() {
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
