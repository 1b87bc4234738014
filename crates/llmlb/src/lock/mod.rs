//! One server per port.
//!
//! A server takes the lock of its port before it binds; a second one is refused and told who is in
//! the way. The lock is the kernel's, on the file [`lock_path`], and ends with the process however
//! that ends. What the file says is an explanation, never a proof: see the crate [`tenure`].
//!
//! ```
//! use llmlb::lock::{self, LockError, ServerLock};
//!
//! # let port = 10 * (std::process::id() % 6000) as u16 + 1; // nobody else's
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

/// Sole ownership of a port among llmlb's servers on this machine. Dropping it lets go.
///
/// It owns the number; it does not bind a socket.
///
/// ```
/// # let port = 10 * (std::process::id() % 6000) as u16 + 2; // nobody else's
/// let lock = llmlb::lock::ServerLock::acquire(port)?;
/// assert_eq!(lock.info().port, port);
/// assert_eq!(lock.info().pid, std::process::id());
/// # Ok::<(), llmlb::lock::LockError>(())
/// ```
#[derive(Debug)]
#[must_use = "the port is let go as soon as the lock is dropped"]
pub struct ServerLock {
    tenure: Tenure,
    info: LockInfo,
}

/// What a server says about itself beyond what every owner says.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Fields {
    /// Where it serves.
    pub(crate) address: SocketAddr,
    /// How long its requests may take to end once it was asked to stop.
    pub(crate) drain_timeout: Duration,
}

impl ServerLock {
    /// Takes a port, or says at once who has it.
    pub fn acquire(port: u16) -> Result<Self, LockError> {
        Self::claim_in(&store(), port, None)
    }

    /// Takes a port for a server, and tells others where it serves and how long it may drain.
    pub(crate) fn claim(port: u16, fields: Fields) -> Result<Self, LockError> {
        Self::claim_in(&store(), port, Some(fields))
    }

    pub(crate) fn claim_in(
        store: &Store,
        port: u16,
        fields: Option<Fields>,
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
        let info =
            LockInfo::of(tenure.record(), port).map_err(|why| corrupted(tenure.path(), why))?;
        Ok(Self { tenure, info })
    }

    /// What others read about this server.
    pub fn info(&self) -> &LockInfo {
        &self.info
    }

    /// The lock file.
    pub fn path(&self) -> &Path {
        self.tenure.path()
    }

    /// Lets go and reports whether everything went well. The port is free in any case.
    pub fn release(self) -> Result<(), LockError> {
        let port = self.info.port;
        self.tenure
            .release()
            .map_err(|source| LockError::ReleaseFailed { port, source })
    }

    /// Tells others that this server lets so many requests end and accepts no more.
    pub(crate) fn tell_draining(&mut self, in_flight: usize) -> Result<(), tenure::Error> {
        self.tenure.set_field(info::DRAINING, in_flight)
    }

    /// The tenure itself, for what only servers need: stop requests and watching.
    pub(crate) fn tenure_mut(&mut self) -> &mut Tenure {
        &mut self.tenure
    }
}

/// The directory of the lock files: `llmlb` in the system's temporary directory (`llmlb-{uid}` if
/// that belongs to another user), or the one that `LLMLB_LOCK_DIR` names.
///
/// ```
/// assert!(llmlb::lock::lock_dir().is_absolute());
/// ```
pub fn lock_dir() -> PathBuf {
    store().dir()
}

/// The lock file of a port: where it is, or where it would be created.
///
/// ```
/// assert!(llmlb::lock::lock_path(8000).ends_with("serve_8000.lock"));
/// ```
pub fn lock_path(port: u16) -> PathBuf {
    store().path_of(&key(port))
}

/// What the lock file of a port says; `None` if there is none. Works while the lock is held.
///
/// A file that a crashed server left is read too: that there is one does not mean that a server
/// runs. A file that holds no record, or not the record of whoever holds the lock, is
/// [`LockError::Corrupted`]. It stands in nobody's way: the next server takes it over.
///
/// ```
/// # let port = 10 * (std::process::id() % 6000) as u16 + 3; // nobody else's
/// assert_eq!(llmlb::lock::read_lock_info(port)?, None);
/// # Ok::<(), llmlb::lock::LockError>(())
/// ```
pub fn read_lock_info(port: u16) -> Result<Option<LockInfo>, LockError> {
    read_in(&store(), port)
}

/// Whether some process has this id now. It need not be the one that a lock file names.
///
/// ```
/// assert!(llmlb::lock::is_process_running(std::process::id()));
/// assert!(!llmlb::lock::is_process_running(0));
/// ```
pub fn is_process_running(pid: u32) -> bool {
    tenure::process::is_running(pid)
}

/// Where the port locks live.
pub(crate) fn store() -> Store {
    match config::env::lock_dir() {
        Some(dir) => Store::in_dir(dir),
        // `llmlb` is a valid name, so that this never fails.
        None => Store::for_program("llmlb").unwrap_or_default(),
    }
}

/// What a server of this port owns.
pub(crate) fn key(port: u16) -> Key {
    // `serve` is a valid name, so that this never fails.
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
                let why = "it is held, but does not name the process that holds it";
                return Err(corrupted(status.path(), why));
            }
        },
        State::Unreadable(why) => return Err(corrupted(status.path(), why.as_str())),
        State::OtherUser(user) => {
            return Err(unreadable(&status, format!("it belongs to {user}")));
        }
        State::Unusable(why) => return Err(unreadable(&status, why.clone())),
        State::Unknown { user, why } => {
            let why = format!("it belongs to {user}, and {why}");
            return Err(unreadable(&status, why));
        }
        _ => return Err(unreadable(&status, "its state is not known".to_owned())),
    };
    LockInfo::of(record, port)
        .map(Some)
        .map_err(|why| corrupted(status.path(), why))
}

fn belongs_to(holder: &Holder) -> String {
    let user = holder.record().and_then(|record| record.user());
    format!("it belongs to {}", user.unwrap_or("another user"))
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
