//! Stopping a process: through an event that it waits on, or by killing it.

use std::io;
use std::ptr;
use std::time::Duration;

use windows_sys::Win32::Foundation::WAIT_OBJECT_0;
use windows_sys::Win32::System::Threading::{
    CreateEventW, EVENT_MODIFY_STATE, OpenEventW, PROCESS_QUERY_LIMITED_INFORMATION,
    PROCESS_SYNCHRONIZE, PROCESS_TERMINATE, SetEvent, TerminateProcess, WaitForSingleObject,
};

use super::handle::{Handle, wide};
use super::process;
use crate::process::Identity;
use crate::sys::types::{Evidence, unidentified};

/// A process that was proven to be the owner, pinned by its handle.
#[derive(Debug)]
pub(crate) struct SignalTarget {
    process: Handle,
    pub(crate) pid: u32,
}

impl SignalTarget {
    pub(crate) fn prove(
        pid: u32,
        identity: Option<&Identity>,
        _evidence: &Evidence<'_>,
    ) -> Result<Self, String> {
        let Some(identity) = identity else {
            return Err(unidentified(pid));
        };
        let access = PROCESS_QUERY_LIMITED_INFORMATION | PROCESS_SYNCHRONIZE | PROCESS_TERMINATE;
        let process = process::open(pid, access)
            .map_err(|error| format!("pid {pid} cannot be opened: {error}"))?;
        if !process::is_alive(&process) || process::creation_time(&process) != Some(identity.start)
        {
            return Err(format!("the process that had pid {pid} has exited"));
        }
        Ok(Self { process, pid })
    }

    pub(crate) fn request_stop(&self, stop_event: Option<&str>) -> io::Result<()> {
        let Some(name) = stop_event else {
            return Err(io::Error::new(
                io::ErrorKind::Unsupported,
                format!(
                    "pid {} does not accept stop requests; it can only be killed",
                    self.pid
                ),
            ));
        };
        // SAFETY: the name ends in zero; the handle is checked.
        let event = Handle::new(unsafe { OpenEventW(EVENT_MODIFY_STATE, 0, wide(name).as_ptr()) })?;
        // SAFETY: the handle is open and allows this.
        if unsafe { SetEvent(event.raw()) } == 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(())
    }

    pub(crate) fn kill(&self) -> io::Result<()> {
        // SAFETY: the handle is open and allows this.
        let done = unsafe { TerminateProcess(self.process.raw(), 1) };
        if done == 0 && process::is_alive(&self.process) {
            return Err(io::Error::last_os_error());
        }
        Ok(())
    }

    pub(crate) fn wait(&self, limit: Duration) -> io::Result<bool> {
        Ok(wait(&self.process, limit))
    }
}

/// Event that `stop` sets to ask this process to exit, since Windows has no signals.
#[derive(Debug)]
pub(crate) struct StopEvent {
    event: Handle,
    name: String,
}

impl StopEvent {
    pub(crate) fn create(token: u64) -> io::Result<Self> {
        let name = format!("Local\\tenure-stop-{}-{token}", std::process::id());
        // SAFETY: the name ends in zero; the handle is checked.
        let event = Handle::new(unsafe { CreateEventW(ptr::null(), 1, 0, wide(&name).as_ptr()) })?;
        Ok(Self { event, name })
    }

    pub(crate) fn name(&self) -> Option<&str> {
        Some(&self.name)
    }

    pub(crate) fn wait(&self, limit: Duration) -> bool {
        wait(&self.event, limit)
    }
}

fn wait(handle: &Handle, limit: Duration) -> bool {
    // WaitForSingleObject waits forever for u32::MAX, so a longer limit is reduced to a value below
    // it.
    let millis = u32::try_from(limit.as_millis())
        .unwrap_or(u32::MAX)
        .min(u32::MAX - 1);
    // SAFETY: the handle is open and allows waiting.
    unsafe { WaitForSingleObject(handle.raw(), millis) == WAIT_OBJECT_0 }
}
