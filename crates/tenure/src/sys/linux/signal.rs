//! Signals a process through a pidfd, which can never refer to another process.

use std::io;
use std::os::fd::OwnedFd;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::Errno;
use rustix::process::{PidfdFlags, Signal};

use super::super::types::Evidence;
use super::super::unix::names;
pub(crate) use super::super::unix::stop_event::StopEvent;
use super::attest;
use super::process::{self, Stat};
use crate::process::Identity;

/// A process that was proven to be the owner, pinned by its pidfd.
#[derive(Debug)]
pub(crate) struct SignalTarget {
    pidfd: OwnedFd,
    pub(crate) pid: u32,
}

impl SignalTarget {
    /// Opens a pidfd and then proves that the process is the owner. In this order the process that
    /// was checked is the one that is signalled.
    pub(crate) fn prove(
        pid: u32,
        identity: Option<&Identity>,
        evidence: &Evidence<'_>,
    ) -> Result<Self, String> {
        let pidfd = rustix::process::pidfd_open(names::signalable(pid)?, PidfdFlags::empty())
            .map_err(|errno| match errno {
                Errno::SRCH => format!("pid {pid} is not running"),
                Errno::NOSYS => "the kernel has no pidfds (they need Linux 5.3 or later), and \
                                 without one the signal could reach another process"
                    .to_owned(),
                errno => format!(
                    "cannot open a pidfd of pid {pid}: {}",
                    io::Error::from(errno)
                ),
            })?;
        let Some(stat) = Stat::read_living(pid) else {
            return Err(format!("pid {pid} is not running"));
        };
        if let Some(identity) = identity {
            if identity.boot.as_deref() != process::boot() {
                return Err(format!(
                    "the lock record of pid {pid} was written before the last boot"
                ));
            }
            if identity.start != stat.start {
                return Err(format!(
                    "pid {pid} now belongs to another process, which started later than the owner"
                ));
            }
            if identity.pid_ns != process::namespace_of(pid) {
                return Err(format!(
                    "pid {pid} is in a PID namespace other than the owner's"
                ));
            }
        }
        let shown = match evidence {
            Evidence::File(file) => attest::has_lock(pid, file.id()),
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

    /// Asks the process to exit, with SIGTERM. Linux needs no stop event.
    pub(crate) fn request_stop(&self, _stop_event: Option<&str>) -> io::Result<()> {
        self.send(Signal::TERM)
    }

    /// Kills the process.
    pub(crate) fn kill(&self) -> io::Result<()> {
        self.send(Signal::KILL)
    }

    /// Waits until the process has exited. Returns false if it is still running after `limit`.
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
            // ESRCH: the process has exited, so the signal has nothing left to do.
            Ok(()) | Err(Errno::SRCH) => Ok(()),
            Err(errno) => Err(errno.into()),
        }
    }
}
