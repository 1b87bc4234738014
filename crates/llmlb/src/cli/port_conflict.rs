//! Another program on a port where no server of ours runs.

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use super::status_client;
use crate::sys::{self, PortOwner};

/// Programs on this machine accept at once, or not at all.
const PATIENCE: Duration = Duration::from_millis(500);

/// Who uses the port, if anybody does.
pub(super) fn on_port(port: u16) -> Option<PortOwner> {
    let answers = loopback(port)
        .iter()
        .any(|address| status_client::accepts(*address, PATIENCE));
    judge(sys::port_owner(port), answers)
}

/// The pid of a server of ours that serves on the port, by its own account or by the system's.
pub(super) fn server_of_llmlb(port: u16, owner: Option<&PortOwner>) -> Option<u32> {
    let listener = owner.filter(|owner| owner.listening)?;
    let answer = loopback(port)
        .into_iter()
        .find_map(|address| status_client::ask(address, PATIENCE).ok());
    let named = || listener.pid.filter(|_| is_llmlb(listener));
    answer.map(|answer| answer.pid).or_else(named)
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

fn judge(owner: Option<PortOwner>, answers: bool) -> Option<PortOwner> {
    match owner {
        // What answers is not what the system knows: a container's port, passed on to it.
        Some(owner) if answers && !owner.listening => Some(unseen()),
        None if answers => Some(unseen()),
        owner => owner,
    }
}

fn unseen() -> PortOwner {
    PortOwner {
        listening: true,
        ..PortOwner::default()
    }
}

/// One line about it.
pub(super) fn line(port: u16, owner: &PortOwner) -> String {
    let what = match (owner.listening, owner.pid) {
        (true, None) => format!("Another program answers on port {port}"),
        (true, Some(_)) => format!("Another program answers on port {port}: {owner}"),
        (false, _) => format!("Port {port} is the near end of a connection of {owner}"),
    };
    if is_llmlb(owner) {
        format!("{what}. Its lock is elsewhere: compare LLMLB_LOCK_DIR and TMPDIR")
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
    fn the_line_says_who_as_far_as_is_known() {
        let cases = [
            (
                owner(Some(7), Some("nginx"), true),
                "Another program answers on port 8000: pid 7 (nginx)",
            ),
            (
                owner(None, None, true),
                "Another program answers on port 8000",
            ),
            (
                owner(Some(7), Some("curl"), false),
                "Port 8000 is the near end of a connection of pid 7 (curl)",
            ),
            (
                owner(Some(7), Some("llmlb"), true),
                "Another program answers on port 8000: pid 7 (llmlb). Its lock is elsewhere: \
                 compare LLMLB_LOCK_DIR and TMPDIR",
            ),
        ];
        for (owner, text) in cases {
            assert_eq!(line(8000, &owner), text);
        }
    }

    #[test]
    fn what_answers_is_not_taken_for_what_merely_connects() {
        let listener = owner(Some(7), None, true);
        let connection = owner(Some(7), None, false);
        assert_eq!(judge(None, false), None);
        assert_eq!(judge(None, true), Some(owner(None, None, true)));
        assert_eq!(judge(Some(listener.clone()), false), Some(listener.clone()));
        assert_eq!(judge(Some(listener.clone()), true), Some(listener));
        assert_eq!(
            judge(Some(connection.clone()), false),
            Some(connection.clone())
        );
        assert_eq!(judge(Some(connection), true), Some(owner(None, None, true)));
    }

    #[test]
    fn a_listener_is_seen_and_a_port_that_is_none_is_free() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        assert!(on_port(port).is_some_and(|owner| owner.listening));
        assert_eq!(on_port(0), None);
    }
}
