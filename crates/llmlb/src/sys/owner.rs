//! Owners of ports on this machine, as far as the system reports them.

use std::fmt;

/// Process that uses a TCP port on this machine.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct PortOwner {
    /// Id of the process, if this user may see it.
    pub(crate) pid: Option<u32>,
    pub(crate) program: Option<String>,
    /// True if the process listens on the port. False if the port is only the local port of an
    /// outgoing connection of the process: the port is then in use, but accepts no connections.
    pub(crate) listening: bool,
}

/// User whose program accepts connections to a port of 127.0.0.1. Prompts must go only to a trusted
/// one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(
    not(target_os = "linux"),
    expect(
        dead_code,
        reason = "only Linux reports the owner of a listener so far"
    )
)]
pub(crate) enum ListenerOwner {
    /// This user or root, who are trusted with prompts.
    Trusted,
    /// Another user, by uid. Prompts must not be sent to this listener.
    Other(u32),
    /// No listening socket on the port is visible to this user.
    None,
    /// The system does not report the owner of the port, so it cannot be checked.
    Unknown,
}

impl fmt::Display for PortOwner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.pid, &self.program) {
            (Some(pid), Some(program)) => write!(f, "pid {pid} ({program})"),
            (Some(pid), None) => write!(f, "pid {pid}"),
            (None, Some(program)) => f.write_str(program),
            (None, None) => f.write_str("a process that is not visible from here"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn owner_is_shown_with_pid_and_program_where_known() {
        let owner = |pid, program: Option<&str>| PortOwner {
            pid,
            program: program.map(str::to_owned),
            listening: true,
        };
        let cases = [
            (owner(Some(123), Some("nginx")), "pid 123 (nginx)"),
            (owner(Some(123), None), "pid 123"),
            (owner(None, Some("nginx")), "nginx"),
            (owner(None, None), "a process that is not visible from here"),
        ];
        for (owner, text) in cases {
            assert_eq!(owner.to_string(), text);
        }
    }
}
