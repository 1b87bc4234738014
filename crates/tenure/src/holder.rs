//! The owner as others see it: what it wrote, and what the kernel attests.

use std::fmt;
use std::path::{Path, PathBuf};

use crate::key::Key;
use crate::record::Record;
use crate::sys;

/// Who owns a key, as far as can be proven from here.
#[derive(Clone, Debug)]
pub struct Holder {
    pub(crate) path: PathBuf,
    pub(crate) proof: Proof,
    pub(crate) pid: Option<u32>,
    pub(crate) record: Option<Record>,
    /// As whom the owner acts, by the kernel's word.
    pub(crate) uid: Option<u32>,
    pub(crate) suspended: bool,
    pub(crate) command_only: bool,
    pub(crate) file_gone: bool,
}

/// How much is known about a [`Holder`]. That the key is held is certain in every case.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Proof {
    /// The process named by the record lives, is the one that wrote it, and has the lock.
    Verified,
    /// The owner is in another PID namespace or on another machine; the record cannot be checked.
    NotVisible,
    /// The lock file belongs to another user, so that its record cannot be read.
    OtherUser,
    /// Nobody owns the key, but a [`ReadLock`](crate::ReadLock) keeps owners out.
    Reader,
    /// The kernel says that the key is held; no process could be proven to hold it.
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
        }
    }

    /// Notes as whom the owner acts. What its record says about that does not count.
    pub(crate) fn attest_user(&mut self, uid: Option<u32>) {
        self.uid = uid;
        let is_own_user = self.is_own_user();
        match (uid, &mut self.record) {
            (Some(uid), record) => record.get_or_insert_default().attest_user(uid),
            (None, Some(record)) if !is_own_user => record.distrust(),
            (None, _) => {}
        }
    }

    /// True if the owner acts as the same user as this process, by the kernel's word. (On Windows, where
    /// users are not told apart, always.)
    pub fn is_own_user(&self) -> bool {
        self.uid == sys::process::current_uid()
    }

    /// The owner's process id as seen from here; `None` unless it is proven.
    pub fn pid(&self) -> Option<u32> {
        self.pid
    }

    /// What the owner wrote about itself; nothing but its user, if that is all that the kernel tells. Not
    /// checked if the proof is [`Proof::NotVisible`].
    ///
    /// Its user is the kernel's word. In another user's record every text is made safe to print, and
    /// the command that stops the owner is left out.
    pub fn record(&self) -> Option<&Record> {
        self.record.as_ref()
    }

    /// How much of this is proven.
    pub fn proof(&self) -> Proof {
        self.proof
    }

    /// The owner is stopped (SIGSTOP, a debugger). It is still the owner.
    pub fn is_suspended(&self) -> bool {
        self.suspended
    }

    /// The process that took the key is gone, but the command it ran lives on and has the lock.
    pub fn is_command_only(&self) -> bool {
        self.command_only
    }

    /// The lock file was deleted, renamed or replaced while it was held.
    pub fn is_file_gone(&self) -> bool {
        self.file_gone
    }

    /// True if nobody owns the key, but a [`ReadLock`](crate::ReadLock) keeps owners out.
    pub fn is_reading(&self) -> bool {
        self.proof == Proof::Reader
    }

    /// The lock file.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl fmt::Display for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.proof, self.pid) {
            (_, Some(pid)) => write!(f, "pid {pid}")?,
            (Proof::OtherUser, None) => f.write_str("another user's process")?,
            (Proof::Reader, None) => f.write_str("a process that only reads")?,
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
        details.push(format!("by its record pid {}", record.pid));
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
                "running {program}; its wrapper, pid {}, is gone",
                record.pid
            )
        } else {
            format!("running {program}, pid {}", command.pid)
        });
    }
    match (&record.user, &record.host) {
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

/// What is known about one key.
#[derive(Clone, Debug)]
pub struct Status {
    pub(crate) key: Key,
    pub(crate) path: PathBuf,
    pub(crate) state: State,
}

/// Whether a key is owned.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum State {
    /// Nobody owns it and no file is left.
    Free,
    /// Somebody owns it.
    Held(Box<Holder>),
    /// Nobody owns it; a crashed owner left its file. The next owner takes it over.
    Stale(Box<Record>),
    /// Nobody owns it; the file holds no record, for the reason given. The next owner takes it
    /// over.
    Unreadable(String),
    /// The file belongs to another user, whose name is given, and the kernel shows that nobody holds
    /// it.
    OtherUser(String),
    /// The kernel does not show from here whether the key is owned. It cannot be taken.
    Unknown {
        /// The user to whom the file, or its directory, belongs.
        user: String,
        /// The reason why it is not shown.
        why: String,
    },
    /// What lies at the path is no lock file, or cannot be opened, for the reason given. Nobody
    /// can take the key until it is removed.
    Unusable(String),
}

impl Status {
    /// The key asked for.
    pub fn key(&self) -> &Key {
        &self.key
    }

    /// Where the key's file is, or would be.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Whether it is owned, and by whom.
    pub fn state(&self) -> &State {
        &self.state
    }

    /// The owner, if there is one.
    pub fn holder(&self) -> Option<&Holder> {
        match &self.state {
            State::Held(holder) => Some(holder),
            _ => None,
        }
    }
}
