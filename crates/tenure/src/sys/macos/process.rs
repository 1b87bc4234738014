//! Identities, users and states of processes, from `proc_pidinfo`.

use crate::process::Identity;

pub(crate) use super::super::unix::names::{current_uid, current_user, host, is_running, user};

const STOPPED: u32 = 4;
const ZOMBIE: u32 = 5;

pub(crate) fn identity(pid: u32) -> Option<Identity> {
    let info = info(pid).filter(|info| info.pbi_status != ZOMBIE)?;
    Some(Identity {
        start: info.pbi_start_tvsec * 1_000_000 + info.pbi_start_tvusec,
        boot: None,
        pid_ns: None,
    })
}

/// Effective user of a process. Unlike the user in a lock record it can be trusted.
pub(crate) fn user_of(pid: u32) -> Option<u32> {
    info(pid).map(|info| info.pbi_uid)
}

/// True if the process is stopped (SIGSTOP, a debugger). It then keeps its keys and cannot respond
/// to stop requests, which messages mention.
pub(crate) fn is_suspended(pid: u32) -> bool {
    info(pid).is_some_and(|info| info.pbi_status == STOPPED)
}

#[expect(unsafe_code, reason = "proc_pidinfo has no safe wrapper")]
fn info(pid: u32) -> Option<libc::proc_bsdinfo> {
    let pid = i32::try_from(pid).ok()?;
    let size = i32::try_from(size_of::<libc::proc_bsdinfo>()).ok()?;
    let mut info = std::mem::MaybeUninit::<libc::proc_bsdinfo>::zeroed();
    // SAFETY: `size` is the size of the buffer, and the return value is the number of filled bytes.
    let filled = unsafe {
        libc::proc_pidinfo(
            pid,
            libc::PROC_PIDTBSDINFO,
            0,
            info.as_mut_ptr().cast(),
            size,
        )
    };
    // SAFETY: zeroed plain data is a valid value, filled or not.
    (filled == size).then(|| unsafe { info.assume_init() })
}
