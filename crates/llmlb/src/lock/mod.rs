//! The port lock: one server per port.
//!
//! A server acquires the lock of its port before it binds the port. A second server is refused with
//! an error that names the first. The kernel holds the lock on the file [`lock_path`] and releases
//! it when the process ends, also after a crash. The lock record in the file is informational and
//! never proves ownership: see the crate [`tenure`].
//!
//! ```
//! use llmlb::lock::{self, LockError, ServerLock};
//!
//! # let port = 10 * (std::process::id() % 6000) as u16 + 1; // of this example alone
//! let lock = ServerLock::acquire(port)?;
//! assert_eq!(lock::read_lock_info(port)?.as_ref(), Some(lock.info()));
//!
//! let refused = ServerLock::acquire(port).unwrap_err();
//! assert!(matches!(refused, LockError::AlreadyRunning { .. }));
//! assert!(refused.to_string().starts_with("Server already running on port "));
//!
//! lock.release()?; // or drop it
//! assert_eq!(lock::read_lock_info(port)?, None);
//! # Ok::<(), LockError>(())
//! ```

mod error;
mod info;

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use tenure::{Holder, Key, Proof, State, Status, Store, Tenure};

use crate::config;

pub use error::LockError;
pub use info::LockInfo;
pub(crate) use info::rfc3339;

/// Exclusive ownership of a port among llmlb's servers on this machine. Dropping it releases the
/// lock.
///
/// The lock covers the port number only; it does not bind a socket.
///
/// ```
/// # let port = 10 * (std::process::id() % 6000) as u16 + 2; // of this example alone
/// let lock = llmlb::lock::ServerLock::acquire(port)?;
/// assert_eq!(lock.info().port, port);
/// assert_eq!(lock.info().pid, std::process::id());
/// # Ok::<(), llmlb::lock::LockError>(())
/// ```
#[derive(Debug)]
#[must_use = "the lock of the port is released as soon as this value is dropped"]
pub struct ServerLock {
    tenure: Tenure,
    info: LockInfo,
}

/// Fields that a server adds to its lock record. `llmlb stop` and `llmlb status` read them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ServerFields {
    /// Address that the server listens on, to which `llmlb status` connects.
    pub(crate) address: SocketAddr,
    /// Maximum duration of the server's drain, which `llmlb stop` waits for.
    pub(crate) drain_timeout: Duration,
}

impl ServerLock {
    /// Acquires the lock of a port. Fails at once, with the holder, if another process has it.
    pub fn acquire(port: u16) -> Result<Self, LockError> {
        Self::acquire_in(&store(), port, None)
    }

    /// Acquires the lock of a port for a server and writes the server's fields into the lock record.
    pub(crate) fn acquire_with(port: u16, fields: ServerFields) -> Result<Self, LockError> {
        Self::acquire_in(&store(), port, Some(fields))
    }

    pub(crate) fn acquire_in(
        store: &Store,
        port: u16,
        fields: Option<ServerFields>,
    ) -> Result<Self, LockError> {
        let mut claim = store
            .claim(&key(port))
            .program("llmlb")
            .verb("serve")
            .stop_command(format!("llmlb stop -p {port}"))
            .field(info::VERSION, env!("CARGO_PKG_VERSION"));
        if let Some(fields) = fields {
            claim = claim
                .field(info::ADDRESS, fields.address.to_string())
                .field(info::DRAIN_TIMEOUT, info::millis(fields.drain_timeout));
        }
        let tenure = claim
            .try_acquire()
            .map_err(|source| LockError::acquire(port, source))?;
        let info = LockInfo::from_record(tenure.record(), port)
            .map_err(|why| corrupted(tenure.path(), why))?;
        Ok(Self { tenure, info })
    }

    /// Returns this server's lock record as other processes read it.
    pub fn info(&self) -> &LockInfo {
        &self.info
    }

    /// Returns the path of the lock file.
    pub fn path(&self) -> &Path {
        self.tenure.path()
    }

    /// Releases the lock. The port is free even if this returns an error.
    pub fn release(self) -> Result<(), LockError> {
        let port = self.info.port;
        self.tenure
            .release()
            .map_err(|source| LockError::ReleaseFailed { port, source })
    }

    /// Writes into the lock record that this server drains, with the number of requests in flight.
    /// `llmlb stop` shows the number and sends no second signal, which would abort them.
    pub(crate) fn publish_draining(&mut self, in_flight: usize) -> Result<(), tenure::Error> {
        self.tenure.set_field(info::DRAINING, in_flight)
    }

    /// Writes a changed drain timeout into the lock record, after a reload. `llmlb stop` waits for
    /// that long.
    pub(crate) fn publish_drain_timeout(&mut self, timeout: Duration) -> Result<(), tenure::Error> {
        self.tenure
            .set_field(info::DRAIN_TIMEOUT, info::millis(timeout))
    }

    /// Returns the underlying tenure, for operations that only servers need: reading stop requests,
    /// and the token that distinguishes this server's `Via` entry.
    pub(crate) fn tenure_mut(&mut self) -> &mut Tenure {
        &mut self.tenure
    }
}

/// Returns the lock directory: `LLMLB_LOCK_DIR` if it is set, else `llmlb` in the system's temporary
/// directory (`llmlb-{uid}` if that belongs to another user).
///
/// ```
/// assert!(llmlb::lock::lock_dir().is_absolute());
/// ```
pub fn lock_dir() -> PathBuf {
    store().dir()
}

/// Returns the path of a port's lock file, whether or not the file exists.
///
/// ```
/// assert!(llmlb::lock::lock_path(8000).ends_with("serve_8000.lock"));
/// ```
pub fn lock_path(port: u16) -> PathBuf {
    store().path_of(&key(port))
}

/// Reads the lock record of a port; `None` if there is no lock file. Works while the lock is held.
///
/// The lock file of a crashed server is read too, so a lock record does not prove that a server
/// runs. A file without a valid lock record, or with the lock record of another process than the
/// holder, is [`LockError::Corrupted`]. Such a file does not block the next server, which
/// replaces the lock record.
///
/// ```
/// # let port = 10 * (std::process::id() % 6000) as u16 + 3; // of this example alone
/// assert_eq!(llmlb::lock::read_lock_info(port)?, None);
/// # Ok::<(), llmlb::lock::LockError>(())
/// ```
pub fn read_lock_info(port: u16) -> Result<Option<LockInfo>, LockError> {
    read_in(&store(), port)
}

/// True if any process has this id now. The system may have reused the id of a server that ended.
///
/// ```
/// assert!(llmlb::lock::is_process_running(std::process::id()));
/// assert!(!llmlb::lock::is_process_running(0));
/// ```
pub fn is_process_running(pid: u32) -> bool {
    tenure::process::is_running(pid)
}

/// Returns the lock directory as a store of tenure.
pub(crate) fn store() -> Store {
    match config::env::lock_dir() {
        Some(dir) => Store::in_dir(dir),
        // The fallback cannot occur: `llmlb` is a valid program name.
        None => Store::for_program("llmlb").unwrap_or_default(),
    }
}

/// Returns the key of a port's lock, which names the lock file in the store.
pub(crate) fn key(port: u16) -> Key {
    // The fallback cannot occur: `serve` is a valid name of a service.
    Key::service("serve", port).unwrap_or_else(|_| Key::port(port))
}

fn read_in(store: &Store, port: u16) -> Result<Option<LockInfo>, LockError> {
    let status = match store.status(&key(port)) {
        Ok(status) => status,
        Err(source) => {
            return Err(LockError::ReadFailed {
                path: store.path_of(&key(port)),
                why: source.to_string(),
                source: Some(source),
            });
        }
    };
    let record = match status.state() {
        State::Free => return Ok(None),
        State::Stale(record) => record,
        State::Held(holder) => match holder.record() {
            Some(_) if holder.proof() == Proof::OtherUser => {
                return Err(unreadable(&status, belongs_to(holder)));
            }
            Some(record) => record,
            None => {
                let why =
                    "the lock is held, but the lock record does not name the process that holds it";
                return Err(corrupted(status.path(), why));
            }
        },
        State::Unreadable(why) => return Err(corrupted(status.path(), why.as_str())),
        State::OtherUser(user) => {
            return Err(unreadable(&status, format!("the file belongs to {user}")));
        }
        State::Unusable(why) => return Err(unreadable(&status, why.clone())),
        State::Unknown { user, why } => {
            let why = format!("the lock file or its directory belongs to {user}, and {why}");
            return Err(unreadable(&status, why));
        }
        _ => {
            return Err(unreadable(
                &status,
                "the state of the lock is unknown".to_owned(),
            ));
        }
    };
    LockInfo::from_record(record, port)
        .map(Some)
        .map_err(|why| corrupted(status.path(), why))
}

fn belongs_to(holder: &Holder) -> String {
    let user = holder.record().and_then(|record| record.user());
    format!("the file belongs to {}", user.unwrap_or("another user"))
}

fn corrupted(path: &Path, why: impl Into<String>) -> LockError {
    LockError::Corrupted {
        path: path.to_owned(),
        why: why.into(),
    }
}

fn unreadable(status: &Status, why: String) -> LockError {
    LockError::ReadFailed {
        path: status.path().to_owned(),
        why,
        source: None,
    }
}

#[cfg(test)]
mod tests;
