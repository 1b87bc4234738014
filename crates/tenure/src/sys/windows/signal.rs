//! Ending a process: by an event that it waits on, or by force.

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
use crate::sys::testimony::Evidence;

/// A process that was proven to be the owner, held fast by its handle.
#[derive(Debug)]
pub(crate) struct Target {
    process: Handle,
    pub(crate) pid: u32,
}

impl Target {
    pub(crate) fn prove(
        pid: u32,
        identity: Option<&Identity>,
        _evidence: &Evidence<'_>,
    ) -> Result<Self, String> {
        let Some(identity) = identity else {
            return Err(format!(
                "the record does not say which process pid {pid} was"
            ));
        };
        let access = PROCESS_QUERY_LIMITED_INFORMATION | PROCESS_SYNCHRONIZE | PROCESS_TERMINATE;
        let process = process::open(pid, access)
            .map_err(|error| format!("pid {pid} cannot be opened: {error}"))?;
        if !process::is_alive(&process) || process::creation_time(&process) != Some(identity.start)
        {
            return Err(format!("pid {pid} is now another process, or none"));
        }
        Ok(Self { process, pid })
    }

    pub(crate) fn ask(&self, stop_event: Option<&str>) -> io::Result<()> {
        let Some(name) = stop_event else {
            return Err(io::Error::new(
                io::ErrorKind::Unsupported,
                format!(
                    "pid {} does not wait for a stop request; it can only be ended by force",
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

/// The event by which this process is asked to stop.
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
    // One short of "for ever".
    let millis = u32::try_from(limit.as_millis())
        .unwrap_or(u32::MAX)
        .min(u32::MAX - 1);
    // SAFETY: the handle is open and allows waiting.
    unsafe { WaitForSingleObject(handle.raw(), millis) == WAIT_OBJECT_0 }
}
