//! Names of the user and the host, for people to read, and whether a process id is taken.

use std::fs;

use rustix::io::Errno;
use rustix::process::Pid;

/// The host's name, as the kernel has it.
pub(crate) fn host() -> Option<String> {
    let name = rustix::system::uname();
    name.nodename().to_str().ok().map(str::to_owned)
}

/// A user's name. Read from `/etc/passwd` alone: asking the name service may block on a network.
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

/// The number of the user this process acts as.
pub(crate) fn current_uid() -> Option<u32> {
    Some(rustix::process::geteuid().as_raw())
}

/// The name of the user this process acts as.
pub(crate) fn current_user() -> String {
    user(rustix::process::geteuid().as_raw())
}

/// Whether some process has this id.
pub(crate) fn is_running(pid: u32) -> bool {
    let Some(pid) = i32::try_from(pid).ok().and_then(Pid::from_raw) else {
        return false;
    };
    // EPERM: it runs, as somebody else.
    matches!(
        rustix::process::test_kill_process(pid),
        Ok(()) | Err(Errno::PERM)
    )
}
