//! Stopping the owner of a key. Only a process that is proven to be the owner is signalled.

use std::io::ErrorKind;
use std::time::{Duration, Instant};

use crate::error::{Error, Kind};
use crate::holder::{Holder, Proof, State};
use crate::key::Key;
use crate::lease;
use crate::process::{self, Identity};
use crate::record::{MAX_BYTES, Record, Unreadable};
use crate::store::{self, Inspection, Store, StoreKind};
use crate::sys::signal::SignalTarget;
use crate::sys::types::Evidence;

/// Interval between checks of the lock while its owner exits.
const POLL_INTERVAL: Duration = Duration::from_millis(20);
/// Maximum time between the kernel's release of an exiting process's lock and the end of the
/// process. `stop` removes the lock file that the process leaves only after its end.
const EXIT_GRACE: Duration = Duration::from_millis(500);
/// Maximum time that a killed process may take to exit.
const KILL_TIMEOUT: Duration = Duration::from_secs(5);
/// Maximum time that an owner may take to release the key after the command that it runs was
/// killed.
const WRAPPER_GRACE: Duration = Duration::from_secs(1);

/// A request to stop the owner of a key. [`run`](Self::run) executes it.
///
/// A process is signalled only if it is proven to be the owner. Another process that now has the
/// recorded pid is not signalled.
///
/// ```
/// use tenure::{Key, Stopped, Store};
///
/// let dir = tempfile::tempdir()?;
/// let outcome = Store::in_dir(dir.path()).stop(&Key::name("backup")?).run()?;
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

/// Outcome of a successful `stop`: no process owned the key, or the owner that `stop` found has
/// released the key.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Stopped {
    /// The owner was asked to exit or was killed, and has released the key.
    Ended {
        /// Process id of the owner.
        pid: u32,
        /// True if the owner did not exit in time, or could not be asked, and was killed.
        killed: bool,
    },
    /// No process owned the key.
    NotRunning,
    /// The owner of a lease, which may be on another machine, was asked to stop through a request
    /// stored next to its lease. The lease has ended since.
    Released {
        /// Owner that held the lease.
        holder: Box<Holder>,
    },
    /// No process owned the key. The file of a crashed owner was removed.
    Cleaned {
        /// Lock record of the file, if it was readable.
        record: Option<Box<Record>>,
    },
    /// No process owned the key. The file at its path was not written by an owner and was not
    /// removed.
    LeftAlone {
        /// Reason why the content of the file is not a lock record.
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

    /// Maximum time to wait for the owner to release the key. Default: 10 seconds.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// Kills the owner if it has not released the key within the timeout. On Windows, an owner that
    /// accepts no stop requests is killed at once.
    pub fn force(mut self, force: bool) -> Self {
        self.force = force;
        self
    }

    /// Sets whether `run` asks the owner to exit (the default). With false, `run` only waits for
    /// the release: an owner that was asked before might treat a second signal as an order to
    /// abort.
    pub fn ask(mut self, ask: bool) -> Self {
        self.ask = ask;
        self
    }

    /// Stops the owner and waits until it has released the key.
    ///
    /// The owner of a lease is never signalled, not even on this machine. It is asked by a request in
    /// the store, which it reads when it renews its lease. `force` has no effect there.
    pub fn run(self) -> Result<Stopped, Error> {
        if let StoreKind::Leases(leases) = &self.store.kind {
            return lease::stop(leases, &self.key, self.timeout, self.ask);
        }
        loop {
            let inspection = self.store.inspect(&self.key)?;
            match &inspection.status.state {
                State::Held(holder) => return self.stop(&inspection, holder),
                State::Free => return Ok(Stopped::NotRunning),
                State::Stale(record) => {
                    if store::remove_stale_file(&inspection.status)? {
                        return Ok(Stopped::Cleaned {
                            record: Some(record.clone()),
                        });
                    }
                }
                State::Unreadable(why) => {
                    if !is_crash_leftover(&inspection) {
                        return Ok(Stopped::LeftAlone { why: why.clone() });
                    }
                    if store::remove_stale_file(&inspection.status)? {
                        return Ok(Stopped::Cleaned { record: None });
                    }
                }
                State::OtherUser(user) => {
                    return Err(self.refused(format!(
                        "no process holds it, but its lock file belongs to {user}, and this user may \
                         not open it"
                    )));
                }
                State::Unknown { user, why } => {
                    let path = inspection.status.path.display();
                    return Err(self.refused(format!(
                        "cannot determine whether it is held: {path} belongs to {user}, and {why}"
                    )));
                }
                State::Unusable(why) => {
                    let path = inspection.status.path.display();
                    return Err(self.refused(format!("{path} is not a lock file: {why}")));
                }
            }
            // Another process acquired the key between the inspection and the removal: inspect it
            // again.
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
        let asked = if self.ask {
            target.request_stop(event)
        } else {
            Ok(())
        };
        match asked {
            Ok(()) => {}
            Err(error) if self.force && error.kind() == ErrorKind::Unsupported => {
                self.kill(&target)?;
                killed = true;
            }
            Err(error) if error.kind() == ErrorKind::Unsupported => {
                return Err(Error::new(Kind::ForceRequired {
                    key: self.key.to_string(),
                    why: error.to_string(),
                }));
            }
            Err(error) => return Err(self.refused(error.to_string())),
        }
        if self.wait_for_release(&target, holder, self.timeout)? {
            return Ok(Stopped::Ended { pid, killed });
        }
        if !self.force {
            return Err(self.still_running(&target, holder));
        }
        self.kill_owner(holder)?;
        if self.wait_for_release(&target, holder, KILL_TIMEOUT)? {
            return Ok(Stopped::Ended { pid, killed: true });
        }
        Err(self.still_running(&target, holder))
    }

    /// Returns the process that `stop` may signal, after proving that it is the owner of the key.
    /// Fails without proof: an unrelated process may have been given the pid in the lock record.
    fn prove(&self, inspection: &Inspection, holder: &Holder) -> Result<SignalTarget, Error> {
        let Some(pid) = holder.pid else {
            return Err(self.refused(match holder.proof {
                Proof::OtherUser => {
                    format!("it is held by {holder}, which only that user or root can stop")
                }
                Proof::NotVisible => {
                    format!("it is held by {holder}; stop it on its host or in its container")
                }
                _ => unproven_reason(inspection),
            }));
        };
        if pid == std::process::id() {
            return Err(self.refused("it is held by the calling process; release it instead"));
        }
        let record = holder.record.as_ref();
        let identity = record.and_then(|record| {
            if holder.command_only {
                record.command.as_ref()?.process.as_ref()
            } else {
                record.process.as_ref()
            }
        });
        self.prove_process(pid, identity, inspection, holder)
            .map_err(|why| self.refused(why))
    }

    fn prove_process(
        &self,
        pid: u32,
        identity: Option<&Identity>,
        inspection: &Inspection,
        holder: &Holder,
    ) -> Result<SignalTarget, String> {
        let key = self.key.to_string();
        // A file that replaced a lost lock file proves nothing about the owner of the lost one.
        let evidence = match &inspection.file {
            Some(file) if !holder.file_gone => Evidence::File(file),
            _ => Evidence::LostFile { key: &key },
        };
        SignalTarget::prove(pid, identity, &evidence)
    }

    /// Kills the owner, if it still owns the key. If the owner runs a command under its tenure,
    /// that command is killed first, because it has inherited the lock. The owner can then exit by
    /// itself and remove the lock file.
    fn kill_owner(&self, before: &Holder) -> Result<(), Error> {
        let inspection = self.store.inspect(&self.key)?;
        let Some(holder) = inspection
            .status
            .holder()
            .filter(|now| is_same_owner(now, before))
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
            if let Ok(command) = self.prove_process(command.pid, identity, &inspection, holder) {
                self.kill(&command)?;
                if !holder.suspended && self.wait_for_release(&owner, holder, WRAPPER_GRACE)? {
                    return Ok(());
                }
            }
        }
        self.kill(&owner)
    }

    fn kill(&self, target: &SignalTarget) -> Result<(), Error> {
        target
            .kill()
            .map_err(|error| self.refused(format!("pid {} cannot be killed: {error}", target.pid)))
    }

    /// Returns true once the owner has released the key or exited, false after `limit`.
    fn wait_for_release(
        &self,
        target: &SignalTarget,
        holder: &Holder,
        limit: Duration,
    ) -> Result<bool, Error> {
        let deadline = Instant::now().checked_add(limit);
        loop {
            let left = deadline.map_or(Duration::MAX, |deadline| {
                deadline.saturating_duration_since(Instant::now())
            });
            let gone = self.wait_for_exit(target, left.min(POLL_INTERVAL))?;
            let inspection = self.store.inspect(&self.key)?;
            match inspection.status.holder() {
                None => {
                    if matches!(inspection.status.state, State::Stale(_))
                        && (gone || self.wait_for_exit(target, EXIT_GRACE.min(left))?)
                    {
                        store::remove_stale_file(&inspection.status)?;
                    }
                    return Ok(true);
                }
                Some(now) if is_new_owner(now, holder) => return Ok(true),
                Some(_) if left.is_zero() => return Ok(false),
                // The process has exited, but a child that inherited the lock is running. Sleep,
                // because waiting for the process would return at once and this loop would spin.
                Some(_) if gone => std::thread::sleep(POLL_INTERVAL.min(left)),
                Some(_) => {}
            }
        }
    }

    fn wait_for_exit(&self, target: &SignalTarget, limit: Duration) -> Result<bool, Error> {
        target
            .wait(limit)
            .map_err(|error| self.refused(format!("cannot wait for pid {}: {error}", target.pid)))
    }

    fn still_running(&self, target: &SignalTarget, holder: &Holder) -> Error {
        let inherited = target.wait(Duration::ZERO).unwrap_or(false);
        let why = if inherited {
            "exited, but a process that inherited the lock is still running".to_owned()
        } else if holder.suspended {
            format!(
                "cannot respond while it is suspended (`kill -CONT {}` resumes it)",
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

    fn refused(&self, why: impl Into<String>) -> Error {
        Error::new(Kind::StopRefused {
            key: self.key.to_string(),
            why: why.into(),
        })
    }
}

/// True if the fencing tokens prove that `now`, the present holder of the key, is another owner
/// than `before`, the holder that `stop` found first.
fn is_new_owner(now: &Holder, before: &Holder) -> bool {
    match (&now.record, &before.record) {
        // Fencing tokens distinguish ownerships. A record without a token contains at most the user
        // and proves no change of owner.
        (Some(now), Some(before)) => now.token != 0 && now.token != before.token,
        _ => false,
    }
}

/// True if `stop` may kill the process of `now`, the present holder of the key: its pid is proven,
/// and no other fencing token shows that it replaced `before`, the holder that `stop` found first.
fn is_same_owner(now: &Holder, before: &Holder) -> bool {
    now.pid.is_some() && !is_new_owner(now, before)
}

/// True if the file can be the remains of a crashed owner: it is empty, or its record is torn.
fn is_crash_leftover(inspection: &Inspection) -> bool {
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

/// Reason why no process is signalled although the lock is held.
fn unproven_reason(inspection: &Inspection) -> String {
    let recorded = inspection.file.as_ref().and_then(|file| {
        let bytes = file.read(MAX_BYTES).ok()?;
        Record::decode(&bytes).ok().map(|record| record.pid)
    });
    match recorded {
        Some(pid) if process::is_running(pid) => format!(
            "it is held, but process {pid}, which the lock record names, could not be proven to \
             hold it and was not signalled"
        ),
        Some(pid) => format!(
            "it is held, but no process with the pid {pid}, which the lock record names, is \
             running here"
        ),
        None => "it is held, but no process could be proven to hold it".to_owned(),
    }
}
