//! Stopping an owner, and nobody else.

use std::io::ErrorKind;
use std::time::{Duration, Instant};

use crate::error::{Error, Kind};
use crate::holder::{Holder, Proof, State};
use crate::key::Key;
use crate::process::{self, Identity};
use crate::record::{MAX_BYTES, Record, Unreadable};
use crate::store::{self, Inspection, Store};
use crate::sys::signal::Target;
use crate::sys::testimony::Evidence;

/// How often the lock is looked at while its owner ends.
const LOOK_AGAIN: Duration = Duration::from_millis(20);
/// How long a process that lost its lock by ending may take to be gone.
const LAST_MOMENT: Duration = Duration::from_millis(500);
/// How long a killed process may take to be gone.
const AFTER_KILL: Duration = Duration::from_secs(5);
/// How long a wrapper may take to clean up after its command was killed.
const AFTER_COMMAND: Duration = Duration::from_secs(1);

/// How to stop the owner of a key.
///
/// A process is signalled only if it is proven to be the owner: a process that merely has the
/// number that the record names is left alone.
///
/// ```
/// use tenure::{Key, Stopped, Store};
///
/// let dir = tempfile::tempdir()?;
/// let outcome = Store::in_dir(dir.path()).stop(&Key::name("nobody")?).run()?;
/// assert!(matches!(outcome, Stopped::NotRunning));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
#[must_use = "nothing is stopped until `run` is called"]
pub struct Stop {
    store: Store,
    key: Key,
    timeout: Duration,
    force: bool,
    ask: bool,
}

/// What `stop` found and did. The owner that it found has let go of the key in every case.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Stopped {
    /// The owner was asked to end, and did.
    Ended {
        /// The process that was asked.
        pid: u32,
        /// It did not end when asked and was killed.
        killed: bool,
    },
    /// Nobody owned the key.
    NotRunning,
    /// Nobody owned the key; a file that a crashed owner had left was removed.
    Cleaned {
        /// What the file said, if it was readable.
        record: Option<Box<Record>>,
    },
    /// Nobody owned the key. The file at its place was not written by an owner and was left alone.
    LeftAlone {
        /// Why it is no record.
        why: String,
    },
}

impl Stop {
    pub(crate) fn new(store: Store, key: Key) -> Self {
        Self {
            store,
            key,
            timeout: Duration::from_secs(10),
            force: false,
            ask: true,
        }
    }

    /// How long to wait for the owner to end. Default: 10 seconds.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// Kills the owner if it has not ended when the time is up; on Windows also an owner that
    /// cannot be asked.
    pub fn force(mut self, force: bool) -> Self {
        self.force = force;
        self
    }

    /// Whether to ask the owner to end; otherwise it is only waited for, because it was asked
    /// before and may take a second request for impatience. Default: yes.
    pub fn ask(mut self, ask: bool) -> Self {
        self.ask = ask;
        self
    }

    /// Stops the owner and waits until it has let go.
    pub fn run(self) -> Result<Stopped, Error> {
        loop {
            let inspection = self.store.inspect(&self.key)?;
            match &inspection.status.state {
                State::Held(holder) => return self.stop(&inspection, holder),
                State::Free => return Ok(Stopped::NotRunning),
                State::Stale(record) => {
                    if store::clean(&inspection.status)? {
                        return Ok(Stopped::Cleaned {
                            record: Some(record.clone()),
                        });
                    }
                }
                State::Unreadable(why) => {
                    if !is_remnant(&inspection) {
                        return Ok(Stopped::LeftAlone { why: why.clone() });
                    }
                    if store::clean(&inspection.status)? {
                        return Ok(Stopped::Cleaned { record: None });
                    }
                }
                State::OtherUser(user) => {
                    return Err(self.refuse(format!("its lock file belongs to {user}")));
                }
                State::Unknown { user, why } => {
                    let path = inspection.status.path.display();
                    return Err(self.refuse(format!(
                        "whether it is held cannot be told: {path} belongs to {user}, and {why}"
                    )));
                }
                State::Unusable(why) => {
                    let path = inspection.status.path.display();
                    return Err(self.refuse(format!("{path} is no lock file: {why}")));
                }
            }
            // Taken in the moment between looking and cleaning: look again.
        }
    }

    fn stop(&self, inspection: &Inspection, holder: &Holder) -> Result<Stopped, Error> {
        let target = self.prove(inspection, holder)?;
        let pid = target.pid;
        let event = holder
            .record
            .as_ref()
            .and_then(|record| record.stop_event.as_deref());
        let mut killed = false;
        let asked = if self.ask { target.ask(event) } else { Ok(()) };
        match asked {
            Ok(()) => {}
            Err(error) if self.force && error.kind() == ErrorKind::Unsupported => {
                self.kill(&target)?;
                killed = true;
            }
            Err(error) => return Err(self.refuse(error.to_string())),
        }
        if self.let_go(&target, holder, self.timeout)? {
            return Ok(Stopped::Ended { pid, killed });
        }
        if !self.force {
            return Err(self.still_running(&target, holder));
        }
        self.kill_all(holder)?;
        if self.let_go(&target, holder, AFTER_KILL)? {
            return Ok(Stopped::Ended { pid, killed: true });
        }
        Err(self.still_running(&target, holder))
    }

    /// Takes hold of the owner, once it is proven to be the owner.
    fn prove(&self, inspection: &Inspection, holder: &Holder) -> Result<Target, Error> {
        let Some(pid) = holder.pid else {
            return Err(self.refuse(match holder.proof {
                Proof::OtherUser => format!("it is held by {holder}; ask them, or use sudo"),
                Proof::NotVisible => format!("it is held by {holder}; stop it where it runs"),
                _ => unproven(inspection),
            }));
        };
        if pid == std::process::id() {
            return Err(self.refuse("this very process holds it; release it instead"));
        }
        let record = holder.record.as_ref();
        let identity = record.and_then(|record| {
            if holder.command_only {
                record.command.as_ref()?.process.as_ref()
            } else {
                record.process.as_ref()
            }
        });
        self.hold_fast(pid, identity, inspection, holder)
            .map_err(|why| self.refuse(why))
    }

    fn hold_fast(
        &self,
        pid: u32,
        identity: Option<&Identity>,
        inspection: &Inspection,
        holder: &Holder,
    ) -> Result<Target, String> {
        let key = self.key.to_string();
        // A file that took the place of a lost one says nothing about the owner.
        let evidence = match &inspection.file {
            Some(file) if !holder.file_gone => Evidence::File(file),
            _ => Evidence::LostFile { key: &key },
        };
        Target::prove(pid, identity, &evidence)
    }

    /// Kills the owner, if it still is the owner. The command that a wrapper runs is killed first:
    /// it has the lock too, and the wrapper can still clean up.
    fn kill_all(&self, before: &Holder) -> Result<(), Error> {
        let inspection = self.store.inspect(&self.key)?;
        let Some(holder) = inspection
            .status
            .holder()
            .filter(|now| is_same(now, before))
        else {
            return Ok(());
        };
        let owner = self.prove(&inspection, holder)?;
        let command = holder
            .record
            .as_ref()
            .and_then(|record| record.command.as_ref());
        if let Some(command) = command.filter(|_| !holder.command_only) {
            let identity = command.process.as_ref();
            if let Ok(command) = self.hold_fast(command.pid, identity, &inspection, holder) {
                self.kill(&command)?;
                if !holder.suspended && self.let_go(&owner, holder, AFTER_COMMAND)? {
                    return Ok(());
                }
            }
        }
        self.kill(&owner)
    }

    fn kill(&self, target: &Target) -> Result<(), Error> {
        target
            .kill()
            .map_err(|error| self.refuse(format!("pid {} cannot be killed: {error}", target.pid)))
    }

    /// Waits until the owner let go, by ending or otherwise.
    fn let_go(&self, target: &Target, holder: &Holder, limit: Duration) -> Result<bool, Error> {
        let deadline = Instant::now().checked_add(limit);
        loop {
            let left = deadline.map_or(Duration::MAX, |deadline| {
                deadline.saturating_duration_since(Instant::now())
            });
            let gone = self.ends(target, left.min(LOOK_AGAIN))?;
            let inspection = self.store.inspect(&self.key)?;
            match inspection.status.holder() {
                None => {
                    if matches!(inspection.status.state, State::Stale(_))
                        && (gone || self.ends(target, LAST_MOMENT.min(left))?)
                    {
                        store::clean(&inspection.status)?;
                    }
                    return Ok(true);
                }
                Some(now) if is_another(now, holder) => return Ok(true),
                Some(_) if left.is_zero() => return Ok(false),
                // Gone, but a child that inherited the lock lives: `wait` returns at once now.
                Some(_) if gone => std::thread::sleep(LOOK_AGAIN.min(left)),
                Some(_) => {}
            }
        }
    }

    fn ends(&self, target: &Target, limit: Duration) -> Result<bool, Error> {
        target
            .wait(limit)
            .map_err(|error| self.refuse(format!("cannot wait for pid {}: {error}", target.pid)))
    }

    fn still_running(&self, target: &Target, holder: &Holder) -> Error {
        let inherited = target.wait(Duration::ZERO).unwrap_or(false);
        let why = if inherited {
            "ended, but a process that inherited the lock lives on".to_owned()
        } else if holder.suspended {
            format!(
                "cannot answer: it is suspended (kill -CONT {} wakes it)",
                target.pid
            )
        } else {
            format!("had not ended after {} s", self.timeout.as_secs_f32())
        };
        Error::new(Kind::StillRunning {
            key: self.key.to_string(),
            pid: target.pid,
            why,
        })
    }

    fn refuse(&self, why: impl Into<String>) -> Error {
        Error::new(Kind::StopRefused {
            key: self.key.to_string(),
            why: why.into(),
        })
    }
}

/// Whether this is proven to be another ownership than the one before.
fn is_another(now: &Holder, before: &Holder) -> bool {
    match (&now.record, &before.record) {
        // A record without a token tells nothing but the user.
        (Some(now), Some(before)) => now.token != 0 && now.token != before.token,
        _ => false,
    }
}

/// Whether this is the same ownership, as far as can be told.
fn is_same(now: &Holder, before: &Holder) -> bool {
    now.pid.is_some() && !is_another(now, before)
}

/// Whether the file is what a crashed owner can leave: empty, or a record that was half written.
fn is_remnant(inspection: &Inspection) -> bool {
    let read = inspection
        .file
        .as_ref()
        .and_then(|file| file.read(MAX_BYTES).ok());
    read.is_some_and(|bytes| {
        matches!(
            Record::decode(&bytes),
            Err(Unreadable::Empty | Unreadable::Torn)
        )
    })
}

/// Why nobody is signalled although the lock is held.
fn unproven(inspection: &Inspection) -> String {
    let recorded = inspection.file.as_ref().and_then(|file| {
        let bytes = file.read(MAX_BYTES).ok()?;
        Record::decode(&bytes).ok().map(|record| record.pid)
    });
    match recorded {
        Some(pid) if process::is_running(pid) => format!(
            "it is held, but not by pid {pid}, which the record names: that is another process \
             now, and was left alone"
        ),
        Some(pid) => format!("it is held, but not by pid {pid}, which the record names"),
        None => "it is held, but no process could be proven to hold it".to_owned(),
    }
}
