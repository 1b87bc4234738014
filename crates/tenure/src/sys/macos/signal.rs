//! Asking a process to end. Without pidfds a window remains between the last check and the
//! signal; it is a few microseconds long, and the process id would have to come round in it.

use std::io;
use std::thread;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::process::{Pid, Signal};

use super::super::testimony::Evidence;
pub(crate) use super::super::unix::stop_event::StopEvent;
use crate::process::Identity;

const LOOK_AGAIN: Duration = Duration::from_millis(2);

#[derive(Debug)]
pub(crate) struct Target {
    pub(crate) pid: u32,
    raw: Pid,
    identity: Identity,
}

impl Target {
    pub(crate) fn prove(
        pid: u32,
        identity: Option<&Identity>,
        _evidence: &Evidence<'_>,
    ) -> Result<Self, String> {
        let raw = i32::try_from(pid)
            .ok()
            .filter(|raw| *raw > 1)
            .and_then(Pid::from_raw);
        let Some(raw) = raw else {
            return Err(format!("pid {pid} is never signalled"));
        };
        let Some(identity) = identity.cloned() else {
            return Err(format!(
                "the record does not say which process pid {pid} was"
            ));
        };
        if !identity.is_running_as(pid) {
            return Err(format!("pid {pid} is now another process, or none"));
        }
        Ok(Self { pid, raw, identity })
    }

    pub(crate) fn ask(&self, _stop_event: Option<&str>) -> io::Result<()> {
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
            thread::sleep(LOOK_AGAIN.min(left));
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
