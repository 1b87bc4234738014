//! Names of users and the host, and checks of process ids.

use std::fs;

use rustix::io::Errno;
use rustix::process::Pid;

/// Name of the host, as the kernel reports it.
pub(crate) fn host() -> Option<String> {
    let name = rustix::system::uname();
    name.nodename().to_str().ok().map(str::to_owned)
}

/// Name of a user. Only `/etc/passwd` is read, because a query to the name service may block on a
/// network.
pub(crate) fn user(uid: u32) -> String {
    let listed = fs::read_to_string("/etc/passwd").ok().and_then(|passwd| {
        passwd.lines().find_map(|line| {
            let mut fields = line.split(':');
            let name = fields.next()?;
            (fields.nth(1)?.parse() == Ok(uid)).then(|| name.to_owned())
        })
    });
    listed.unwrap_or_else(|| format!("uid {uid}"))
}

pub(crate) fn current_uid() -> Option<u32> {
    Some(rustix::process::geteuid().as_raw())
}

pub(crate) fn current_user() -> String {
    user(rustix::process::geteuid().as_raw())
}

/// Returns the id of a process that may be signalled. Pids 0 and 1 never are: 0 means the sender's
/// own process group, and 1 is the init process.
pub(crate) fn signalable(pid: u32) -> Result<Pid, String> {
    i32::try_from(pid)
        .ok()
        .filter(|raw| *raw > 1)
        .and_then(Pid::from_raw)
        .ok_or_else(|| format!("pid {pid} is never signalled"))
}

/// True if a process has this id, also if the process belongs to another user.
pub(crate) fn is_running(pid: u32) -> bool {
    let Some(pid) = i32::try_from(pid).ok().and_then(Pid::from_raw) else {
        return false;
    };
    matches!(
        rustix::process::test_kill_process(pid),
        Ok(()) | Err(Errno::PERM)
    )
}
