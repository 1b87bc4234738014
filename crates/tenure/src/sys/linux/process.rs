//! Identities, users and states of processes, from `/proc`.

use std::fs;
use std::sync::OnceLock;

use super::proc;
use crate::process::Identity;

pub(crate) use super::super::unix::names::{current_uid, current_user, host, is_running, user};

#[derive(Clone, Copy, Debug)]
pub(super) struct Stat {
    pub(super) state: u8,
    pub(super) start: u64,
}

impl Stat {
    /// Reads the fields of a process. `None`: it does not exist, or is a zombie that has not been
    /// reaped.
    pub(super) fn read_living(pid: u32) -> Option<Self> {
        let text = proc::read_small(&format!("/proc/{pid}/stat"))?;
        let stat = parse_stat(&text)?;
        (!matches!(stat.state, b'Z' | b'X' | b'x')).then_some(stat)
    }

    pub(super) fn is_suspended(self) -> bool {
        matches!(self.state, b'T' | b't')
    }
}

pub(crate) fn identity(pid: u32) -> Option<Identity> {
    Some(Identity {
        start: Stat::read_living(pid)?.start,
        boot: boot().map(str::to_owned),
        pid_ns: own_namespace(),
    })
}

/// Effective user of a process. Unlike the user in a lock record it can be trusted.
pub(crate) fn user_of(pid: u32) -> Option<u32> {
    let owner = rustix::fs::stat(format!("/proc/{pid}")).ok()?.st_uid;
    if owner != 0 {
        return Some(owner);
    }
    // `/proc/PID` belongs to root for processes that may not be inspected, whatever their user.
    // Read the user from `status` instead.
    let status = proc::read_small(&format!("/proc/{pid}/status"))?;
    let ids = str::from_utf8(&status)
        .ok()?
        .lines()
        .find_map(|line| line.strip_prefix("Uid:"))?;
    ids.split_ascii_whitespace().nth(1)?.parse().ok()
}

/// True if the process is stopped (SIGSTOP, a debugger). It then keeps its keys and cannot respond
/// to stop requests, which messages mention.
pub(crate) fn is_suspended(pid: u32) -> bool {
    Stat::read_living(pid).is_some_and(Stat::is_suspended)
}

pub(super) fn boot() -> Option<&'static str> {
    static BOOT: OnceLock<Option<String>> = OnceLock::new();
    BOOT.get_or_init(|| {
        let text = proc::read_small("/proc/sys/kernel/random/boot_id")?;
        Some(str::from_utf8(&text).ok()?.trim().to_owned())
    })
    .as_deref()
}

pub(super) fn own_namespace() -> Option<u64> {
    static NAMESPACE: OnceLock<Option<u64>> = OnceLock::new();
    *NAMESPACE.get_or_init(|| namespace_link("/proc/self/ns/pid"))
}

/// True if `/proc` can show every process and every lock of the machine.
pub(super) fn is_in_initial_pid_namespace() -> bool {
    const PROC_PID_INIT_INO: u64 = 0xEFFF_FFFC;
    own_namespace() == Some(PROC_PID_INIT_INO)
}

/// True if uids have the same meaning here as on the rest of the machine.
pub(super) fn is_in_initial_user_namespace() -> bool {
    const PROC_USER_INIT_INO: u64 = 0xEFFF_FFFD;
    namespace_link("/proc/self/ns/user") == Some(PROC_USER_INIT_INO)
}

/// Id of the PID namespace of another process. Callers compare it with the namespace in a lock
/// record, because the recorded pid is valid only in that namespace.
pub(super) fn namespace_of(pid: u32) -> Option<u64> {
    namespace_link(&format!("/proc/{pid}/ns/pid"))
}

/// Pid of a process in its own, innermost PID namespace, in which the process wrote its lock
/// record.
pub(super) fn innermost_pid(pid: u32) -> Option<u32> {
    let status = proc::read_small(&format!("/proc/{pid}/status"))?;
    let ids = str::from_utf8(&status)
        .ok()?
        .lines()
        .find_map(|line| line.strip_prefix("NSpid:"))?;
    ids.split_ascii_whitespace().last()?.parse().ok()
}

fn namespace_link(path: &str) -> Option<u64> {
    let link = fs::read_link(path).ok()?;
    let text = link.to_str()?;
    let (_, number) = text.strip_suffix(']')?.split_once(":[")?;
    number.parse().ok()
}

/// Parses the fields after the program's name. The name may contain any character, even `)` and
/// spaces, so the last `)` is its end.
fn parse_stat(text: &[u8]) -> Option<Stat> {
    let end = text.iter().rposition(|byte| *byte == b')')?;
    let mut fields = text.get(end + 2..)?.split(|byte| *byte == b' ');
    let state = *fields.next()?.first()?;
    // `starttime` is field 22 of proc_pid_stat(5); the state is field 3.
    let start = std::str::from_utf8(fields.nth(18)?).ok()?.parse().ok()?;
    Some(Stat { state, start })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parentheses_in_a_program_name_do_not_shift_the_fields() {
        let text = b"42 (a) Z 1 (b) S 1 42 42 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 1 0 987654 1 2\n";
        let stat = parse_stat(text).unwrap();
        assert_eq!((stat.state, stat.start), (b'S', 987_654));
    }

    #[test]
    fn own_process_has_an_identity() {
        let me = std::process::id();
        let identity = identity(me).unwrap();
        assert!(identity.boot.is_some() && identity.pid_ns.is_some());
        assert_eq!(innermost_pid(me), Some(me));
        assert_eq!(namespace_of(me), own_namespace());
    }
}
