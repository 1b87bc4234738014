//! The tenure itself: held while it exists.

use std::path::Path;
use std::process::{Child, Command};
use std::time::SystemTime;

use serde_json::Value;

use crate::Key;
use crate::error::Error;
use crate::process::Identity;
use crate::record::{self, Record};
use crate::store::{FilePlace, Held, Store};
use crate::sys::inherit;

/// Sole ownership of a key. Dropping it lets go.
///
/// It can be stored, moved to another thread and kept for as long as the program runs. A child
/// that is forked off does not release its parent's tenure by dropping its copy.
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
#[must_use = "the key is let go as soon as the tenure is dropped"]
pub struct Tenure {
    held: Option<Held>,
    record: Record,
    /// The record that others read is not this one, for this reason.
    record_error: Option<Error>,
    /// The process that acquired it. A forked child has a copy, but owns nothing.
    owner: u32,
}

/// A command that runs under a tenure.
#[derive(Debug)]
pub struct Running {
    /// The command's process.
    pub child: Child,
    bond: inherit::Bond,
}

impl Running {
    /// Forgets that the command and the tenure belong together, once the command has ended: what
    /// it left running goes on. (On Windows, it would otherwise be ended with this process.)
    pub fn finish(self) {
        self.bond.release();
    }
}

impl Tenure {
    pub(crate) fn new(held: Held, record: Record, record_error: Option<Error>) -> Self {
        Self {
            owner: record.pid,
            held: Some(held),
            record,
            record_error,
        }
    }

    /// Takes a key in the default store, or says at once who has it.
    pub fn acquire(key: &Key) -> Result<Self, Error> {
        Store::default().claim(key).try_acquire()
    }

    /// What others read about this owner.
    pub fn record(&self) -> &Record {
        &self.record
    }

    /// The reason why the record could not be written when the key was taken. The key is held all the
    /// same; others are told that its owner is unknown. `None` once the record was written, which
    /// every change of the record ([`set_field`](Self::set_field)) tries again.
    pub fn record_error(&self) -> Option<&Error> {
        self.record_error.as_ref()
    }

    /// The fencing token: larger than that of every earlier owner of this key in this store.
    ///
    /// Send it along with what you write; a receiver that refuses a smaller token than the
    /// largest it has seen is safe from an owner that was replaced without noticing. One hole
    /// remains in a file store: if the clock is set back while the key is free and its file is
    /// removed, tokens start again from the clock ([`Claim::keep_file`](crate::Claim::keep_file)
    /// closes it).
    pub fn token(&self) -> u64 {
        self.record.token
    }

    /// The lock file.
    pub fn path(&self) -> &Path {
        self.held.as_ref().map_or(Path::new(""), Held::path)
    }

    /// Whether the path no longer leads to our lock file: it was deleted, renamed or replaced behind our
    /// back, one of its ancestors was renamed, or a symbolic link on the way was switched. One system
    /// call; [`watch`](Self::watch) asks again and again.
    ///
    /// On Linux the deletion guard still keeps other owners out, within the same network namespace; but
    /// a path that leads to another directory is another key, which another process may own. On macOS
    /// another process may own the key in every case. On Windows a held file cannot be deleted or
    /// renamed.
    pub fn lost(&self) -> bool {
        self.held.as_ref().is_none_or(Held::is_lost)
    }

    pub(crate) fn place(&self) -> std::io::Result<FilePlace> {
        match &self.held {
            Some(held) => held.place(),
            None => Err(std::io::ErrorKind::NotFound.into()),
        }
    }

    /// Adds a field to the record, or changes it.
    ///
    /// Fields in the file that this process did not write are kept.
    pub fn set_field(
        &mut self,
        name: impl Into<String>,
        value: impl Into<Value>,
    ) -> Result<(), Error> {
        self.record.extra.insert(name.into(), value.into());
        self.rewrite()
    }

    /// Starts a command that inherits the lock, and names it in the record.
    ///
    /// If this process is killed, nobody else gets the key while the command lives. (Windows: the
    /// command is ended with this process.) When this process releases the tenure, the key is
    /// free, even if the command or something it started still runs.
    pub fn spawn(&mut self, command: &mut Command) -> std::io::Result<Running> {
        let Some(held) = &self.held else {
            return Err(std::io::ErrorKind::NotFound.into());
        };
        let (child, bond) = inherit::spawn(command, held.file(), held.guard())?;
        self.record.command = Some(record::Command {
            pid: child.id(),
            program: Path::new(command.get_program())
                .file_name()
                .map(|name| name.to_string_lossy().into_owned()),
            process: Identity::of(child.id()),
        });
        if let Err(error) = self.rewrite() {
            tracing::warn!(%error, "the command runs, but the record does not name it");
        }
        Ok(Running { child, bond })
    }

    /// Announces an event by which `stop` can ask this owner to end, where there are no signals.
    pub(crate) fn announce_stop_event(&mut self, name: String) -> Result<(), Error> {
        self.record.stop_event = Some(name);
        self.rewrite()
    }

    /// Lets go of the key and leaves file and record as a crash would: the next owner takes them
    /// over and can [`inherit`](crate::Claim::inherit) from them.
    pub fn leave(mut self) -> Result<(), Error> {
        let Some(held) = self.held.take() else {
            return Ok(());
        };
        if std::process::id() != self.owner {
            held.abandon();
            return Ok(());
        }
        tracing::debug!(path = %held.path().display(), token = self.record.token, "left");
        held.release(true)
    }

    /// Lets go and reports whether everything went well. The key is free in any case.
    pub fn release(mut self) -> Result<(), Error> {
        self.let_go()
    }

    fn rewrite(&mut self) -> Result<(), Error> {
        let Some(held) = &mut self.held else {
            return Ok(());
        };
        if let Ok(written) = held.read()? {
            for (name, value) in written.extra {
                self.record.extra.entry(name).or_insert(value);
            }
        }
        held.write(&self.record)?;
        self.record_error = None;
        Ok(())
    }

    fn let_go(&mut self) -> Result<(), Error> {
        let Some(mut held) = self.held.take() else {
            return Ok(());
        };
        if std::process::id() != self.owner {
            held.abandon();
            return Ok(());
        }
        // Also before the file is removed: who meets the owner without its file can then tell that it
        // is letting go, and has not lost the file.
        let kept = held.is_kept();
        self.record.released_at = Some(SystemTime::now());
        let marked = held.write(&self.record);
        let path = held.path().to_owned();
        held.release(kept)?;
        tracing::debug!(path = %path.display(), token = self.record.token, "released");
        // A record that was never written needs no mark, and its error was reported before.
        if kept && self.record_error.is_none() {
            marked
        } else {
            Ok(())
        }
    }
}

impl Drop for Tenure {
    fn drop(&mut self) {
        if let Err(error) = self.let_go() {
            tracing::warn!(%error, "releasing a tenure");
        }
    }
}
