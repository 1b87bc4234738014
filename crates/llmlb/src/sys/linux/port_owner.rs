//! Finds the process that uses a port, for the error message of a port that is taken. The kernel
//! lists the sockets of this network namespace and the open files of each process.

use std::fs;
use std::path::Path;

use crate::sys::PortOwner;
use crate::text;

/// State of a listening socket in `/proc/net/tcp`.
const LISTENING: &str = "0A";

/// Returns the process that uses a TCP port, preferably a listener and not a connection; `None` if
/// the port is free. Only root sees other users' open files, so the pid may be missing.
pub(crate) fn port_owner(port: u16) -> Option<PortOwner> {
    let sockets: Vec<Socket> = ["/proc/net/tcp", "/proc/net/tcp6"]
        .iter()
        .filter_map(|table| fs::read_to_string(table).ok())
        .flat_map(|table| on_port(&table, port))
        .collect();
    let socket = sockets
        .iter()
        .find(|socket| socket.listening)
        .or_else(|| sockets.first())?;
    let pid = process_with(socket.inode);
    Some(PortOwner {
        pid,
        program: pid.and_then(program),
        listening: socket.listening,
    })
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Socket {
    listening: bool,
    inode: u64,
}

/// Returns the sockets of the kernel's table whose local port is this port. A socket without an
/// inode is skipped: it is in TIME_WAIT and belongs to no process.
fn on_port(table: &str, port: u16) -> Vec<Socket> {
    table
        .lines()
        .skip(1)
        .filter_map(|line| {
            let columns: Vec<&str> = line.split_whitespace().collect();
            let (_, local) = columns.get(1)?.rsplit_once(':')?;
            let inode = columns.get(9)?.parse().ok()?;
            let socket = Socket {
                listening: *columns.get(3)? == LISTENING,
                inode,
            };
            (u16::from_str_radix(local, 16) == Ok(port) && inode != 0).then_some(socket)
        })
        .collect()
}

/// Returns the process that has a socket open. Of several, the lowest pid is most likely the one
/// that opened it; the others inherited it.
fn process_with(inode: u64) -> Option<u32> {
    let wanted = format!("socket:[{inode}]");
    fs::read_dir("/proc")
        .ok()?
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse::<u32>().ok())
        .filter(|pid| has_open(*pid, Path::new(&wanted)))
        .min()
}

fn has_open(pid: u32, wanted: &Path) -> bool {
    fs::read_dir(format!("/proc/{pid}/fd")).is_ok_and(|files| {
        files
            .flatten()
            .any(|file| fs::read_link(file.path()).is_ok_and(|target| target == wanted))
    })
}

fn program(pid: u32) -> Option<String> {
    let name = fs::read_to_string(format!("/proc/{pid}/comm")).ok()?;
    // A process chooses its own name, which could contain control characters for a terminal.
    // Replace them.
    let name = text::plain(name.trim_end()).into_owned();
    (!name.is_empty()).then_some(name)
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};

    use super::*;

    const TABLE: &str = "\
  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode
   0: 0100007F:8000 0100007F:1F90 01 00000000:00000000 00:00000000 00000000     0        0 41 1
   1: 00000000:8000 00000000:0000 0A 00000000:00000000 00:00000000 00000000  1000        0 42 1
   2: 0100007F:8000 0100007F:1F91 06 00000000:00000000 03:00000D5B 00000000     0        0 0 3
   3: 0100007F:1F90 0100007F:8000 01 00000000:00000000 00:00000000 00000000     0        0 43 1
garbage
";

    #[test]
    fn sockets_are_found_by_local_port_and_only_with_an_inode() {
        let socket = |listening, inode| Socket { listening, inode };
        assert_eq!(
            on_port(TABLE, 0x8000),
            [socket(false, 41), socket(true, 42)]
        );
        assert_eq!(on_port(TABLE, 0x1F90), [socket(false, 43)]);
        assert_eq!(on_port(TABLE, 0x1F91), []);
        assert_eq!(on_port("", 80), []);
    }

    fn me(listening: bool) -> PortOwner {
        PortOwner {
            pid: Some(std::process::id()),
            program: program(std::process::id()),
            listening,
        }
    }

    #[test]
    fn listener_is_preferred_to_its_connections() {
        for address in ["127.0.0.1:0", "[::1]:0"] {
            let Ok(listener) = TcpListener::bind(address) else {
                assert_ne!(address, "127.0.0.1:0", "there is always IPv4 loopback");
                continue;
            };
            let here = listener.local_addr().unwrap();
            let _connected = TcpStream::connect(here).unwrap();
            let _accepted = listener.accept().unwrap();
            assert_eq!(port_owner(here.port()), Some(me(true)), "{address}");
        }
    }

    #[test]
    fn outgoing_connection_is_found_by_its_local_port() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let outgoing = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let port = outgoing.local_addr().unwrap().port();
        assert_eq!(port_owner(port), Some(me(false)));
    }

    #[test]
    fn unused_port_has_no_owner() {
        // No socket can be bound to port 0, so it has no owner.
        assert_eq!(port_owner(0), None);
    }

    #[test]
    fn program_name_has_no_line_feed() {
        assert!(program(std::process::id()).is_some_and(|name| !name.ends_with('\n')));
        assert_eq!(program(u32::MAX), None);
    }
}
