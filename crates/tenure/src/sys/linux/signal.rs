//! Asking a process to end, through a descriptor that can never mean another process.

use std::io;
use std::os::fd::OwnedFd;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal};

use super::super::testimony::Evidence;
pub(crate) use super::super::unix::stop_event::StopEvent;
use super::attest;
use super::process::{self, Stat};
use crate::process::Identity;

/// A process that was proven to be the owner, held fast.
#[derive(Debug)]
pub(crate) struct Target {
    pidfd: OwnedFd,
    pub(crate) pid: u32,
}

impl Target {
    /// Takes hold of the process, then proves that it is the owner. In this order the process
    /// that was checked is the one that will be signalled.
    pub(crate) fn prove(
        pid: u32,
        identity: Option<&Identity>,
        evidence: &Evidence<'_>,
    ) -> Result<Self, String> {
        let raw = i32::try_from(pid)
            .ok()
            .filter(|raw| *raw > 1)
            .and_then(Pid::from_raw);
        let Some(raw) = raw else {
            return Err(format!("pid {pid} is never signalled"));
        };
        let pidfd =
            rustix::process::pidfd_open(raw, PidfdFlags::empty()).map_err(|errno| match errno {
                Errno::SRCH => format!("pid {pid} is not running"),
                Errno::NOSYS => "this kernel has no pidfds (Linux 5.3), without which the wrong \
                             process could be hit"
                    .to_owned(),
                errno => format!("pid {pid} cannot be held fast: {}", io::Error::from(errno)),
            })?;
        let Some(stat) = Stat::of_living(pid) else {
            return Err(format!("pid {pid} is not running"));
        };
        if let Some(identity) = identity {
            if identity.boot.as_deref() != process::boot() {
                return Err(format!(
                    "pid {pid} was recorded before the machine was last started"
                ));
            }
            if identity.start != stat.start {
                return Err(format!(
                    "pid {pid} is now another process, started later than the owner"
                ));
            }
            if identity.pid_ns != process::namespace_of(pid) {
                return Err(format!(
                    "pid {pid} is in another PID namespace than the owner"
                ));
            }
        }
        let shown = match evidence {
            Evidence::File(file) => attest::shows_lock(pid, file.id()),
            Evidence::LostFile { key } => {
                let lost = attest::record_of_lost_file(pid, key);
                let named = lost.and_then(|record| match record.command {
                    Some(command) if command.pid == pid => command.process,
                    _ => record.process,
                });
                identity.is_some() && named.as_ref() == identity
            }
        };
        if !shown {
            return Err(format!("pid {pid} does not have the lock"));
        }
        Ok(Self { pidfd, pid })
    }

    /// Asks it to end.
    pub(crate) fn ask(&self, _stop_event: Option<&str>) -> io::Result<()> {
        self.send(Signal::TERM)
    }

    /// Ends it.
    pub(crate) fn kill(&self) -> io::Result<()> {
        self.send(Signal::KILL)
    }

    /// Waits until it is gone. `false`: it still runs.
    pub(crate) fn wait(&self, limit: Duration) -> io::Result<bool> {
        let timeout = Timespec::try_from(limit).unwrap_or(Timespec {
            tv_sec: 1,
            tv_nsec: 0,
        });
        let mut watched = [PollFd::new(&self.pidfd, PollFlags::IN)];
        match rustix::event::poll(&mut watched, Some(&timeout)) {
            Ok(count) => Ok(count > 0),
            Err(Errno::INTR) => Ok(false),
            Err(errno) => Err(errno.into()),
        }
    }

    fn send(&self, signal: Signal) -> io::Result<()> {
        match rustix::process::pidfd_send_signal(&self.pidfd, signal) {
            // Gone already: as good as done.
            Ok(()) | Err(Errno::SRCH) => Ok(()),
            Err(errno) => Err(errno.into()),
        }
    }
}
