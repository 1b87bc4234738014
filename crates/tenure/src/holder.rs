//! The owner of a key as other processes see it: its lock record, compared with what the kernel
//! attests.

use std::fmt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::key::Key;
use crate::record::Record;
use crate::sys;

/// Process that owns a key, as far as it can be proven from this process.
#[derive(Clone, Debug)]
pub struct Holder {
    pub(crate) path: PathBuf,
    pub(crate) proof: Proof,
    pub(crate) pid: Option<u32>,
    pub(crate) record: Option<Record>,
    /// Effective user of the owner, as the kernel reports it.
    pub(crate) uid: Option<u32>,
    pub(crate) suspended: bool,
    pub(crate) command_only: bool,
    pub(crate) file_gone: bool,
    /// Time until the lease ends unless it is renewed.
    pub(crate) expires_in: Option<Duration>,
}

/// Degree of proof for a [`Holder`]. The key is certainly held in every case.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Proof {
    /// The process that the lock record names is running, wrote the record and has the lock.
    Verified,
    /// The owner is in another PID namespace or on another machine, so its lock record cannot be
    /// checked.
    NotVisible,
    /// The lock file belongs to another user, and its lock record cannot be read.
    OtherUser,
    /// No process owns the key, but a [`ReadLock`](crate::ReadLock) excludes owners.
    Reader,
    /// The store attests a valid lease. The lock record is the owner's own text, and the owner is
    /// usually on another machine.
    Lease,
    /// The kernel reports that the key is held, but no process could be proven to hold it.
    Unknown,
}

impl Holder {
    pub(crate) fn unknown(path: PathBuf) -> Self {
        Self {
            path,
            proof: Proof::Unknown,
            pid: None,
            record: None,
            uid: None,
            suspended: false,
            command_only: false,
            file_gone: false,
            expires_in: None,
        }
    }

    /// Sets the owner's user to the one that the kernel reports. The user in the lock record is not
    /// trusted.
    pub(crate) fn attest_user(&mut self, uid: Option<u32>) {
        self.uid = uid;
        let is_own_user = self.is_own_user();
        match (uid, &mut self.record) {
            (Some(uid), record) => record.get_or_insert_default().attest_user(uid),
            (None, Some(record)) if !is_own_user => record.sanitize_foreign(),
            (None, _) => {}
        }
    }

    /// True if the owner runs as the same user as this process, as the kernel reports it. Always
    /// true on Windows, where tenure does not distinguish users.
    pub fn is_own_user(&self) -> bool {
        self.uid == sys::process::current_uid()
    }

    /// Process id of the owner in this PID namespace; `None` unless it is proven.
    pub fn pid(&self) -> Option<u32> {
        self.pid
    }

    /// Lock record of the owner. It contains only the user if the kernel reveals no more, and it is
    /// not verified if the proof is [`Proof::NotVisible`].
    ///
    /// The user is the one that the kernel reports. In another user's record every text is made
    /// safe to print, and the stop command is removed.
    pub fn record(&self) -> Option<&Record> {
        self.record.as_ref()
    }

    /// Degree of proof for this holder.
    pub fn proof(&self) -> Proof {
        self.proof
    }

    /// True if the owner is suspended (SIGSTOP, a debugger). A suspended process remains the owner.
    pub fn is_suspended(&self) -> bool {
        self.suspended
    }

    /// True if the process that acquired the key has exited, while the command that it started
    /// still has the lock.
    pub fn is_command_only(&self) -> bool {
        self.command_only
    }

    /// True if the lock file was deleted, renamed or replaced while it was held.
    pub fn is_file_gone(&self) -> bool {
        self.file_gone
    }

    /// True if no process owns the key, but a [`ReadLock`](crate::ReadLock) excludes owners.
    pub fn is_reading(&self) -> bool {
        self.proof == Proof::Reader
    }

    /// Time until the lease of the owner ends unless it is renewed. `None` for lock files, and for
    /// stores that do not report it.
    pub fn expires_in(&self) -> Option<Duration> {
        self.expires_in
    }

    /// Path of the lock file. In a lease store: its URL without credentials, `#` and the key.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl fmt::Display for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.proof, self.pid) {
            (_, Some(pid)) => write!(f, "pid {pid}")?,
            (Proof::Lease, None) => match &self.record {
                Some(record) => {
                    let host = record.host.as_deref().unwrap_or("an unknown host");
                    write!(f, "pid {} on host {host}", record.pid)?;
                }
                None => f.write_str("an unknown process with a lease")?,
            },
            (Proof::OtherUser, None) => f.write_str("another user's process")?,
            (Proof::Reader, None) => f.write_str("a process with a read lock")?,
            (Proof::NotVisible, None) => f.write_str("a process that is not visible from here")?,
            (_, None) => f.write_str("an unknown process")?,
        }
        if let Some(record) = &self.record {
            describe(f, record, self)?;
        }
        if self.suspended {
            f.write_str(" [suspended]")?;
        }
        if self.file_gone {
            f.write_str(" [its lock file was deleted or replaced]")?;
        }
        Ok(())
    }
}

fn describe(f: &mut fmt::Formatter<'_>, record: &Record, holder: &Holder) -> fmt::Result {
    let mut details = Vec::new();
    if holder.proof == Proof::NotVisible {
        details.push(format!(
            "unverified pid {} from the lock record",
            record.pid
        ));
    }
    match (&record.program, &record.verb) {
        (Some(program), Some(verb)) => details.push(format!("{program} {verb}")),
        (Some(program), None) => details.push(program.clone()),
        _ => {}
    }
    if let Some(command) = &record.command {
        let program = command.program.as_deref().unwrap_or("a command");
        details.push(if holder.command_only {
            format!(
                "running {program}; its wrapper, pid {}, has exited",
                record.pid
            )
        } else {
            format!("running {program}, pid {}", command.pid)
        });
    }
    let host = record
        .host
        .as_ref()
        .filter(|_| holder.proof != Proof::Lease);
    match (&record.user, host) {
        (Some(user), Some(host)) => details.push(format!("user {user} on {host}")),
        (Some(user), None) => details.push(format!("user {user}")),
        (None, Some(host)) => details.push(format!("on {host}")),
        (None, None) => {}
    }
    if !details.is_empty() {
        write!(f, " ({})", details.join(", "))?;
    }
    if let Some(since) = record.started_at_text() {
        write!(f, " since {since}")?;
    }
    Ok(())
}

/// State of one key, with the path of its lock file.
#[derive(Clone, Debug)]
pub struct Status {
    pub(crate) key: Key,
    pub(crate) path: PathBuf,
    pub(crate) state: State,
}

/// State of a key.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum State {
    /// No process owns the key, and it has no lock file.
    Free,
    /// A process owns the key.
    Held(Box<Holder>),
    /// No process owns the key. A crashed owner left its file, which the next owner takes over.
    Stale(Box<Record>),
    /// No process owns the key. The file contains no lock record, for the reason given. The next
    /// owner takes the file over.
    Unreadable(String),
    /// The file belongs to the named user, and the kernel shows that no process holds it.
    OtherUser(String),
    /// The lock file or its directory belongs to another user, and the kernel does not show this
    /// process whether the key is owned. Acquiring the key is refused until that is known.
    Unknown {
        /// User who owns the lock file. If this process may not search the lock directory: user who
        /// owns the directory.
        user: String,
        /// Reason why the kernel does not show whether the key is owned.
        why: String,
    },
    /// The object at the path is not a lock file, or cannot be opened, for the reason given. The
    /// key cannot be acquired until the object is removed.
    Unusable(String),
}

impl Status {
    /// Key that was inspected.
    pub fn key(&self) -> &Key {
        &self.key
    }

    /// Path of the key's lock file, or the path at which it would be created. In a lease store: its
    /// URL without credentials, `#` and the key.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// State of the key, with its owner if it is held.
    pub fn state(&self) -> &State {
        &self.state
    }

    /// Owner of the key, if it is held.
    pub fn holder(&self) -> Option<&Holder> {
        match &self.state {
            State::Held(holder) => Some(holder),
            _ => None,
        }
    }
}
