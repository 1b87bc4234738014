//! The guard that a process holds while it owns a key.

use std::path::Path;
use std::process::{Child, Command};
use std::time::SystemTime;

use serde_json::Value;

use crate::Key;
use crate::error::Error;
use crate::lease::{Lease, LeaseState};
use crate::process::Identity;
use crate::record::{self, ExtraField, Record};
use crate::store::{Held, LossCheck, Store};
use crate::sys::inherit;

/// Sole ownership of a key. Dropping the tenure releases the key.
///
/// A tenure can be stored and moved to another thread. A forked child that drops its copy does not
/// release the tenure of its parent.
///
/// ```
/// use tenure::{Key, Store};
///
/// let dir = tempfile::tempdir()?;
/// let tenure = Store::in_dir(dir.path()).claim(&Key::name("job")?).try_acquire()?;
/// assert!(!tenure.lost());
/// let write_with = tenure.token(); // larger than any earlier owner's
/// tenure.release()?;
/// # assert!(write_with > 0);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
#[must_use = "the key is released as soon as the tenure is dropped"]
pub struct Tenure {
    held: Option<Ownership>,
    record: Record,
    /// Error that prevented writing the lock record when the key was acquired. While it is set, the
    /// file does not contain `record`.
    record_error: Option<Error>,
    /// Process that acquired the key. A forked child has a copy of the tenure, but owns nothing.
    owner: u32,
}

/// Proof of ownership: a locked file or a lease.
#[derive(Debug)]
pub(crate) enum Ownership {
    File(Held),
    Lease(Lease),
}

impl Ownership {
    fn path(&self) -> &Path {
        match self {
            Self::File(held) => held.path(),
            Self::Lease(lease) => lease.path(),
        }
    }

    /// Drops a copy that a forked child has, without releasing the key of its parent.
    fn abandon(self) {
        match self {
            Self::File(held) => held.abandon(),
            Self::Lease(lease) => lease.abandon(),
        }
    }
}

/// Check that the key is not lost, for threads that do not have the tenure.
#[derive(Debug)]
pub(crate) enum AnyLossCheck {
    File(LossCheck),
    Lease(LeaseState),
}

impl AnyLossCheck {
    pub(crate) fn is_lost(&self) -> bool {
        match self {
            Self::File(check) => check.is_lost(),
            Self::Lease(state) => state.is_lost(),
        }
    }
}

/// A command that runs under a tenure.
#[derive(Debug)]
pub struct Running {
    /// The command's process.
    pub child: Child,
    job: inherit::CommandJob,
}

impl Running {
    /// Lets background processes of the command keep running after the command has exited. On
    /// Windows they are killed if this value is dropped without calling `finish`.
    pub fn finish(self) {
        self.job.release();
    }
}

impl Tenure {
    pub(crate) fn new(held: Ownership, record: Record, record_error: Option<Error>) -> Self {
        Self {
            owner: record.pid,
            held: Some(held),
            record,
            record_error,
        }
    }

    /// Acquires a key in the default store. Fails at once if it is held; the error names the
    /// holder.
    pub fn acquire(key: &Key) -> Result<Self, Error> {
        Store::default().claim(key).try_acquire()
    }

    /// Lock record that other processes read about this owner.
    pub fn record(&self) -> &Record {
        &self.record
    }

    /// Error that prevented writing the lock record when the key was acquired. The key is held
    /// nevertheless; other processes see an unknown owner. Every change of the record
    /// ([`set_field`](Self::set_field)) tries to write it again, and a success clears the error.
    pub fn record_error(&self) -> Option<&Error> {
        self.record_error.as_ref()
    }

    /// Fencing token: larger than the token of every earlier owner of this key in this store.
    ///
    /// Send the token with every write. A receiver that rejects tokens smaller than the largest one
    /// it has seen is safe from an owner that was replaced without noticing. One exception remains
    /// in a file store: if the clock is set back while the key is free and its file is removed,
    /// tokens start again from the clock. [`Claim::keep_file`](crate::Claim::keep_file) avoids it.
    pub fn token(&self) -> u64 {
        self.record.token
    }

    /// Path of the lock file. In a lease store: its URL without credentials, `#` and the key.
    pub fn path(&self) -> &Path {
        self.held.as_ref().map_or(Path::new(""), Ownership::path)
    }

    /// State of the lease, for threads that check it or wait for its loss. `None` in a store of lock
    /// files.
    pub fn lease_state(&self) -> Option<LeaseState> {
        match &self.held {
            Some(Ownership::Lease(lease)) => lease.shared_state(),
            _ => None,
        }
    }

    /// True if this process may no longer be the only owner. The check is cheap;
    /// [`watch`](Self::watch) repeats it.
    ///
    /// A lease is lost once it was not renewed in time, also while this process or its machine was
    /// suspended, and when the store has forgotten it. A lost lease stays lost. A write that has
    /// already begun is stopped only by a receiver that checks the [`token`](Self::token).
    ///
    /// A lock file is lost if the path no longer leads to it: the file was deleted, renamed or
    /// replaced, an ancestor directory was renamed, or a symbolic link on the path was changed.
    ///
    /// The owner of a lost lock file may no longer be alone. On Linux the deletion guard refuses
    /// other owners within the same network namespace if the file was deleted, renamed or replaced.
    /// If the path now leads to another directory, it names another key, which another process may
    /// own. On macOS another process may own the key whenever `lost` returns true. On Windows a
    /// held file cannot be deleted or renamed.
    pub fn lost(&self) -> bool {
        match &self.held {
            Some(Ownership::File(held)) => held.is_lost(),
            // A forked child has no renewal thread and owns nothing, so its copy counts as lost.
            Some(Ownership::Lease(lease)) => {
                lease.state().is_lost() || std::process::id() != self.owner
            }
            None => true,
        }
    }

    pub(crate) fn loss_check(&self) -> std::io::Result<AnyLossCheck> {
        match &self.held {
            Some(Ownership::File(held)) => held.loss_check().map(AnyLossCheck::File),
            _ => self
                .lease_state()
                .map(AnyLossCheck::Lease)
                .ok_or_else(|| std::io::ErrorKind::NotFound.into()),
        }
    }

    /// Adds a field to the lock record, or changes it.
    ///
    /// Fields in the file that this process did not write are kept.
    pub fn set_field(
        &mut self,
        name: impl Into<String>,
        value: impl Into<Value>,
    ) -> Result<(), Error> {
        let field = ExtraField::from(value.into());
        self.record.extra.insert(name.into(), field);
        self.rewrite()
    }

    /// Starts a command that inherits the lock, and names the command in the lock record.
    ///
    /// If this process is killed, the key stays held while the command runs. (Windows: the command
    /// is killed with this process.) When this process releases the tenure, the key is free, even
    /// if the command or one of its children still runs.
    ///
    /// A command cannot inherit a lease, and would keep running after the lease is lost. In a lease
    /// store this function fails with [`ErrorKind::Unsupported`](std::io::ErrorKind::Unsupported),
    /// except on Windows, where the caller must drop the result when the lease is lost.
    /// `tenure run --store` runs commands under a watchdog that ends them in time.
    pub fn spawn(&mut self, command: &mut Command) -> std::io::Result<Running> {
        let (child, job) = match &self.held {
            Some(Ownership::File(held)) => inherit::spawn(command, held.file(), held.guard())?,
            Some(Ownership::Lease(_)) => inherit::spawn_on_lease(command)?,
            None => return Err(std::io::ErrorKind::NotFound.into()),
        };
        self.name_command(child.id(), Path::new(command.get_program()));
        Ok(Running { child, job })
    }

    /// Writes the command that runs under this tenure into the lock record. [`spawn`](Self::spawn)
    /// does this by itself.
    pub fn name_command(&mut self, pid: u32, program: &Path) {
        self.record.command = Some(record::RecordedCommand {
            pid,
            program: program
                .file_name()
                .map(|name| name.to_string_lossy().into_owned()),
            process: Identity::from_pid(pid),
        });
        if let Err(error) = self.rewrite() {
            tracing::warn!(%error, "the command was started, but the lock record does not name it");
        }
    }

    /// Adds the name of the stop event to the lock record. On systems without signals, `stop` sets
    /// this event to ask the owner to exit.
    pub(crate) fn announce_stop_event(&mut self, name: String) -> Result<(), Error> {
        self.record.stop_event = Some(name);
        self.rewrite()
    }

    /// Releases the key and leaves the file and its record as a crash would. The next owner takes
    /// them over and can [`inherit`](crate::Claim::inherit) fields. A lease ends after its TTL.
    pub fn leave(mut self) -> Result<(), Error> {
        let Some(held) = self.held.take() else {
            return Ok(());
        };
        if std::process::id() != self.owner {
            held.abandon();
            return Ok(());
        }
        tracing::debug!(path = %held.path().display(), token = self.record.token, "released without removing the lock file");
        match held {
            Ownership::File(held) => held.release_only(),
            Ownership::Lease(lease) => {
                lease.abandon();
                Ok(())
            }
        }
    }

    /// Releases the key and reports errors, for example a lock file that could not be removed. A lock
    /// file's key is free in any case. A lease whose release the store does not confirm ends after
    /// its TTL.
    pub fn release(mut self) -> Result<(), Error> {
        self.release_held()
    }

    fn rewrite(&mut self) -> Result<(), Error> {
        let held = match &mut self.held {
            Some(Ownership::File(held)) => held,
            Some(Ownership::Lease(lease)) => return lease.write(&self.record),
            None => return Ok(()),
        };
        if let Ok(written) = held.read()? {
            for (name, field) in written.extra {
                self.record.extra.entry(name).or_insert(field);
            }
        }
        held.write(&self.record)?;
        self.record_error = None;
        Ok(())
    }

    fn release_held(&mut self) -> Result<(), Error> {
        let Some(held) = self.held.take() else {
            return Ok(());
        };
        if std::process::id() != self.owner {
            held.abandon();
            return Ok(());
        }
        let mut held = match held {
            Ownership::File(held) => held,
            Ownership::Lease(lease) => {
                let path = lease.path().to_owned();
                lease.release()?;
                tracing::debug!(path = %path.display(), token = self.record.token, "released");
                return Ok(());
            }
        };
        // `released_at` marks the lock record as released. It is also written to a file that is
        // removed next. A process that finds the owner without its file can then distinguish a
        // release in progress from a file that was lost.
        let kept = held.is_kept();
        self.record.released_at = Some(SystemTime::now());
        let marked = held.write(&self.record);
        let path = held.path().to_owned();
        held.release()?;
        tracing::debug!(path = %path.display(), token = self.record.token, "released");
        // A lock record that was never written needs no `released_at`, and its write error was
        // reported when the key was acquired.
        if kept && self.record_error.is_none() {
            marked
        } else {
            Ok(())
        }
    }
}

impl Drop for Tenure {
    fn drop(&mut self) {
        if let Err(error) = self.release_held() {
            tracing::warn!(%error, "releasing the key failed");
        }
    }
}
