//! Stopping an owner, and nobody else.

use std::time::{Duration, Instant};

use crate::error::{Error, Kind};
use crate::holder::{Holder, Proof, State, Status};
use crate::key::Key;
use crate::process;
use crate::record::{MAX_BYTES, Record};
use crate::store::{self, Inspection, Store};
use crate::sys::signal::Target;

/// How often the lock is looked at while its owner ends.
const LOOK_AGAIN: Duration = Duration::from_millis(20);
/// How long a killed process may take to be gone.
const AFTER_KILL: Duration = Duration::from_secs(5);

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
}

/// What `stop` found and did. The key is free in every case.
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
}

impl Stop {
    pub(crate) fn new(store: Store, key: Key) -> Self {
        Self {
            store,
            key,
            timeout: Duration::from_secs(10),
            force: false,
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

    /// Stops the owner and waits until the key is free.
    pub fn run(self) -> Result<Stopped, Error> {
        let inspection = self.store.inspect(&self.key)?;
        let holder = match &inspection.status.state {
            State::Held(holder) => (**holder).clone(),
            State::Free => return Ok(Stopped::NotRunning),
            State::Stale(record) => return clean(&inspection.status, Some(record.clone())),
            State::Unreadable(_) => return clean(&inspection.status, None),
            State::OtherUser(user) => {
                return Err(self.refuse(format!("its lock file belongs to {user}")));
            }
            State::Unusable(why) => {
                return Err(self.refuse(format!(
                    "{} is no lock file: {why}",
                    inspection.status.path.display()
                )));
            }
        };
        let target = self.prove(&holder, &inspection)?;
        self.ask(&target, &holder)?;
        if self.ended(&target, self.timeout)? {
            return Ok(Stopped::Ended {
                pid: target.pid,
                killed: false,
            });
        }
        if !self.force {
            return Err(self.still_running(&target, &holder));
        }
        self.kill(&target, &holder, &inspection)?;
        if self.ended(&target, AFTER_KILL)? {
            return Ok(Stopped::Ended {
                pid: target.pid,
                killed: true,
            });
        }
        Err(self.still_running(&target, &holder))
    }

    fn prove(&self, holder: &Holder, inspection: &Inspection) -> Result<Target, Error> {
        let Some(pid) = holder.pid else {
            return Err(self.refuse(match holder.proof {
                Proof::OtherUser => "it is held by another user's process".to_owned(),
                Proof::NotVisible => format!("it is held by {holder}; stop it where it runs"),
                _ => unproven(inspection),
            }));
        };
        let record = holder.record.as_ref();
        let identity = record.and_then(|record| {
            if holder.command_only {
                record.command.as_ref()?.process.as_ref()
            } else {
                record.process.as_ref()
            }
        });
        // A file that took the place of a lost one says nothing about its owner.
        let file = inspection.file.as_ref().filter(|_| !holder.file_gone);
        Target::prove(pid, identity, file).map_err(|why| self.refuse(why))
    }

    fn ask(&self, target: &Target, holder: &Holder) -> Result<(), Error> {
        let event = holder
            .record
            .as_ref()
            .and_then(|record| record.stop_event.as_deref());
        match target.ask(event) {
            Ok(()) => Ok(()),
            Err(error) if self.force && error.kind() == std::io::ErrorKind::Unsupported => {
                target.kill().map_err(|error| {
                    self.refuse(format!("pid {} cannot be ended: {error}", target.pid))
                })
            }
            Err(error) => Err(self.refuse(error.to_string())),
        }
    }

    /// Kills the owner. A wrapper is killed after the command that it runs, which has the lock
    /// too, so that it can still clean up.
    fn kill(&self, owner: &Target, holder: &Holder, inspection: &Inspection) -> Result<(), Error> {
        let cannot = |error| self.refuse(format!("pid {} cannot be killed: {error}", owner.pid));
        let command = holder
            .record
            .as_ref()
            .and_then(|record| record.command.as_ref());
        if let Some(command) = command.filter(|_| !holder.command_only) {
            let file = inspection.file.as_ref().filter(|_| !holder.file_gone);
            if let Ok(command) = Target::prove(command.pid, command.process.as_ref(), file) {
                command.kill().map_err(cannot)?;
                if !holder.suspended && self.ended(owner, Duration::from_secs(1))? {
                    return Ok(());
                }
            }
        }
        owner.kill().map_err(cannot)
    }

    /// Waits until the owner let go, by ending or otherwise.
    fn ended(&self, target: &Target, limit: Duration) -> Result<bool, Error> {
        let deadline = Instant::now() + limit;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            let gone = target.wait(left.min(LOOK_AGAIN)).map_err(|error| {
                self.refuse(format!("cannot wait for pid {}: {error}", target.pid))
            })?;
            let status = self.store.status(&self.key)?;
            match status.holder() {
                None => {
                    if gone && !matches!(status.state, State::Free) {
                        clean(&status, None)?;
                    }
                    return Ok(true);
                }
                // Somebody else took over in the meantime: the one we were asked to stop is gone.
                Some(now)
                    if gone
                        && now.pid.is_some()
                        && now.pid != Some(target.pid)
                        && !now.command_only =>
                {
                    return Ok(true);
                }
                Some(_) if left.is_zero() => return Ok(false),
                // Gone, but a child that inherited the lock lives: `wait` returns at once now.
                Some(_) if gone => std::thread::sleep(LOOK_AGAIN.min(left)),
                Some(_) => {}
            }
        }
    }

    fn still_running(&self, target: &Target, holder: &Holder) -> Error {
        let why = match self.store.status(&self.key) {
            Ok(status)
                if status
                    .holder()
                    .is_some_and(|now| now.pid != Some(target.pid)) =>
            {
                "ended, but a process that inherited the lock lives on".to_owned()
            }
            _ if holder.suspended => format!(
                "cannot answer: it is suspended (kill -CONT {} wakes it)",
                target.pid
            ),
            _ => format!("had not ended after {} s", self.timeout.as_secs_f32()),
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

fn clean(status: &Status, record: Option<Box<Record>>) -> Result<Stopped, Error> {
    Ok(if store::clean(status)? {
        Stopped::Cleaned { record }
    } else {
        Stopped::NotRunning
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
