//! Detection of another program on a port, for `serve`, `stop` and `status`.

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use super::status_client;
use crate::sys::{self, PortOwner};

/// Maximum time to connect to a port of this machine. A program accepts at once, or never.
const CONNECT_TIMEOUT: Duration = Duration::from_millis(500);

/// Returns the process that uses the port; `None` if the port is free.
pub(super) fn port_user(port: u16) -> Option<PortOwner> {
    let accepts = loopback(port)
        .iter()
        .any(|address| status_client::accepts(*address, CONNECT_TIMEOUT));
    combine(sys::port_owner(port), accepts)
}

/// Returns the pid of an llmlb server that listens on the port: from the server's `/status`, else
/// from the system if the program is called `llmlb`.
pub(super) fn llmlb_pid(port: u16, owner: Option<&PortOwner>) -> Option<u32> {
    let listener = owner.filter(|owner| owner.listening)?;
    let response = loopback(port)
        .into_iter()
        .find_map(|address| status_client::fetch(address, CONNECT_TIMEOUT).ok());
    let named = || listener.pid.filter(|_| is_llmlb(listener));
    response.map(|response| response.pid).or_else(named)
}

fn is_llmlb(owner: &PortOwner) -> bool {
    owner.program.as_deref() == Some("llmlb")
}

fn loopback(port: u16) -> [SocketAddr; 2] {
    [
        (Ipv4Addr::LOCALHOST, port).into(),
        (Ipv6Addr::LOCALHOST, port).into(),
    ]
}

/// Combines the process that uses a port, as the system reports it, with the result of a connection
/// attempt: a listener may be invisible to this user.
fn combine(owner: Option<PortOwner>, accepts: bool) -> Option<PortOwner> {
    match owner {
        // Report an unknown program if the port accepts connections although the system lists no
        // listener, as for the forwarded port of a container.
        Some(owner) if accepts && !owner.listening => Some(invisible_listener()),
        None if accepts => Some(invisible_listener()),
        owner => owner,
    }
}

fn invisible_listener() -> PortOwner {
    PortOwner {
        listening: true,
        ..PortOwner::default()
    }
}

/// Formats one line about the program that uses the port.
pub(super) fn line(port: u16, owner: &PortOwner) -> String {
    let what = match (owner.listening, owner.pid) {
        (true, None) => format!("Another program listens on port {port}"),
        (true, Some(_)) => format!("Another program listens on port {port}: {owner}"),
        (false, _) => {
            format!("Port {port} is the local port of an outgoing connection of {owner}")
        }
    };
    if is_llmlb(owner) {
        format!("{what}. It uses another lock directory: compare LLMLB_LOCK_DIR and TMPDIR")
    } else {
        what
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn owner(pid: Option<u32>, program: Option<&str>, listening: bool) -> PortOwner {
        PortOwner {
            pid,
            program: program.map(str::to_owned),
            listening,
        }
    }

    #[test]
    fn line_names_the_program_where_known() {
        let cases = [
            (
                owner(Some(7), Some("nginx"), true),
                "Another program listens on port 8000: pid 7 (nginx)",
            ),
            (
                owner(None, None, true),
                "Another program listens on port 8000",
            ),
            (
                owner(Some(7), Some("curl"), false),
                "Port 8000 is the local port of an outgoing connection of pid 7 (curl)",
            ),
            (
                owner(Some(7), Some("llmlb"), true),
                "Another program listens on port 8000: pid 7 (llmlb). It uses another lock directory: \
                 compare LLMLB_LOCK_DIR and TMPDIR",
            ),
        ];
        for (owner, text) in cases {
            assert_eq!(line(8000, &owner), text);
        }
    }

    #[test]
    fn accepting_port_has_a_listener_even_if_the_system_lists_only_a_connection() {
        let listener = owner(Some(7), None, true);
        let connection = owner(Some(7), None, false);
        assert_eq!(combine(None, false), None);
        assert_eq!(combine(None, true), Some(owner(None, None, true)));
        assert_eq!(
            combine(Some(listener.clone()), false),
            Some(listener.clone())
        );
        assert_eq!(combine(Some(listener.clone()), true), Some(listener));
        assert_eq!(
            combine(Some(connection.clone()), false),
            Some(connection.clone())
        );
        assert_eq!(
            combine(Some(connection), true),
            Some(owner(None, None, true))
        );
    }

    #[test]
    fn listener_is_detected_and_port_zero_is_free() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        assert!(port_user(port).is_some_and(|owner| owner.listening));
        assert_eq!(port_user(0), None);
    }
}
