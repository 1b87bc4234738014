//! Who uses a port, as far as the system tells.

use std::fmt;

/// The user of a TCP port on this machine.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct PortOwner {
    /// Its process, if the system lets us see it.
    pub(crate) pid: Option<u32>,
    /// That process's program, without its path.
    pub(crate) program: Option<String>,
    /// It waits for connections there. Otherwise the port is the near end of a connection, as any
    /// program gets one that connects to somewhere.
    pub(crate) listening: bool,
}

/// The user whose program accepts connections to a port of 127.0.0.1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(
    not(target_os = "linux"),
    expect(dead_code, reason = "only Linux tells so far")
)]
pub(crate) enum ListenerOwner {
    /// This user or root.
    Trusted,
    /// Another user, by number.
    Other(u32),
    /// No listening socket is visible.
    None,
    /// The system does not tell.
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
    fn an_owner_is_named_as_far_as_it_is_known() {
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
