//! Linux: the kernel lists the sockets of our network namespace, and each process's open files.

use std::fs;
use std::path::Path;

use crate::sys::PortOwner;
use crate::text;

/// The state of a socket that waits for connections, in `/proc/net/tcp`.
const LISTENING: &str = "0A";

/// Who uses a TCP port, or `None` if nobody does. A listener goes before a connection. Only root
/// sees the files of other users' processes: for others such an owner has no pid.
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

/// The sockets in a table whose near end is this port. One without an inode belongs to nobody any
/// more: the kernel only waits for its last packets.
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

/// The process that has a socket open; of several, the one with the lowest number, which is most
/// likely the one that opened it.
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
    // A program may call itself what it likes; a terminal must not obey it.
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
    fn only_the_near_end_counts_and_only_sockets_that_somebody_has() {
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
    fn a_listener_is_found_and_preferred_to_its_connections() {
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
    fn an_outgoing_connection_is_found_by_its_near_end() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let outgoing = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let port = outgoing.local_addr().unwrap().port();
        assert_eq!(port_owner(port), Some(me(false)));
    }

    #[test]
    fn a_port_that_nobody_uses_has_no_owner() {
        // Port 0 is no port: nothing can be bound to it.
        assert_eq!(port_owner(0), None);
    }

    #[test]
    fn the_program_has_a_name() {
        assert!(program(std::process::id()).is_some_and(|name| !name.ends_with('\n')));
        assert_eq!(program(u32::MAX), None);
    }
}
