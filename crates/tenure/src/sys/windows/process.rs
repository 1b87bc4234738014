//! Identities and states of processes, through handles. While a handle is open, the pid is not
//! reused.

use std::io;

use windows_sys::Win32::Foundation::{ERROR_ACCESS_DENIED, FILETIME, WAIT_TIMEOUT};
use windows_sys::Win32::System::Threading::{
    GetProcessTimes, OpenProcess, PROCESS_ACCESS_RIGHTS, PROCESS_QUERY_LIMITED_INFORMATION,
    PROCESS_SYNCHRONIZE, WaitForSingleObject,
};

use super::handle::Handle;
use crate::process::Identity;

pub(crate) fn identity(pid: u32) -> Option<Identity> {
    let process = open(pid, PROCESS_QUERY_LIMITED_INFORMATION | PROCESS_SYNCHRONIZE).ok()?;
    is_alive(&process)
        .then(|| creation_time(&process))
        .flatten()
        .map(|start| Identity {
            start,
            boot: None,
            pid_ns: None,
        })
}

pub(crate) fn is_running(pid: u32) -> bool {
    match open(pid, PROCESS_QUERY_LIMITED_INFORMATION | PROCESS_SYNCHRONIZE) {
        Ok(process) => is_alive(&process),
        Err(error) => {
            let code = error
                .raw_os_error()
                .and_then(|code| u32::try_from(code).ok());
            code == Some(ERROR_ACCESS_DENIED)
        }
    }
}

/// Always false: Windows suspends threads, not processes.
pub(crate) fn is_suspended(_pid: u32) -> bool {
    false
}

pub(crate) fn host() -> Option<String> {
    std::env::var("COMPUTERNAME").ok()
}

/// Always `None`: Windows has no numeric user ids, and the user in a lock record is not checked.
pub(crate) fn current_uid() -> Option<u32> {
    None
}

pub(crate) fn user_of(_pid: u32) -> Option<u32> {
    None
}

pub(crate) fn user(_uid: u32) -> String {
    "another user".to_owned()
}

pub(crate) fn current_user() -> String {
    std::env::var("USERNAME").unwrap_or_else(|_| "unknown".to_owned())
}

pub(super) fn open(pid: u32, access: PROCESS_ACCESS_RIGHTS) -> io::Result<Handle> {
    // SAFETY: plain numbers; the handle is checked by `Handle::new`.
    Handle::new(unsafe { OpenProcess(access, 0, pid) })
}

pub(super) fn is_alive(process: &Handle) -> bool {
    // SAFETY: the handle is open and allows waiting.
    unsafe { WaitForSingleObject(process.raw(), 0) == WAIT_TIMEOUT }
}

/// Creation time of the process, in units of 100 ns since 1601 (`FILETIME`). A process that reuses
/// the pid has another one.
pub(super) fn creation_time(process: &Handle) -> Option<u64> {
    let mut times = [FILETIME::default(); 4];
    let [created, exited, kernel, user] = &mut times;
    // SAFETY: the handle is open and the four structures outlive the call.
    let done = unsafe { GetProcessTimes(process.raw(), created, exited, kernel, user) };
    (done != 0).then(|| u64::from(created.dwHighDateTime) << 32 | u64::from(created.dwLowDateTime))
}
