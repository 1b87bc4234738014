//! Signals a process. Without pidfds a window of a few microseconds remains between the last check
//! and the signal. The wrong process is signalled only if the owner exits and its pid is reused
//! within that window.

use std::io;
use std::thread;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::process::{Pid, Signal};

use super::super::types::{Evidence, unidentified};
use super::super::unix::names;
pub(crate) use super::super::unix::stop_event::StopEvent;
use crate::process::Identity;

const POLL_INTERVAL: Duration = Duration::from_millis(2);

#[derive(Debug)]
pub(crate) struct SignalTarget {
    pub(crate) pid: u32,
    raw: Pid,
    identity: Identity,
}

impl SignalTarget {
    pub(crate) fn prove(
        pid: u32,
        identity: Option<&Identity>,
        _evidence: &Evidence<'_>,
    ) -> Result<Self, String> {
        let raw = names::signalable(pid)?;
        let Some(identity) = identity.cloned() else {
            return Err(unidentified(pid));
        };
        if !identity.is_running_as(pid) {
            return Err(format!("the process that had pid {pid} has exited"));
        }
        Ok(Self { pid, raw, identity })
    }

    pub(crate) fn request_stop(&self, _stop_event: Option<&str>) -> io::Result<()> {
        self.send(Signal::TERM)
    }

    pub(crate) fn kill(&self) -> io::Result<()> {
        self.send(Signal::KILL)
    }

    pub(crate) fn wait(&self, limit: Duration) -> io::Result<bool> {
        let deadline = Instant::now() + limit;
        while self.identity.is_running_as(self.pid) {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(false);
            }
            thread::sleep(POLL_INTERVAL.min(left));
        }
        Ok(true)
    }

    fn send(&self, signal: Signal) -> io::Result<()> {
        if !self.identity.is_running_as(self.pid) {
            return Ok(());
        }
        match rustix::process::kill_process(self.raw, signal) {
            Ok(()) | Err(Errno::SRCH) => Ok(()),
            Err(errno) => Err(errno.into()),
        }
    }
}
