//! The user whose program listens on a port, as the kernel reports it.

use std::fs::File;
use std::io::{self, BufRead, BufReader};

use rustix::process::geteuid;

use crate::sys::ListenerOwner;

/// The state of a socket that waits for connections, in `/proc/net/tcp`.
const LISTENING: &str = "0A";
const ROOT: u32 = 0;

/// The owner of the socket that accepts connections to this port of 127.0.0.1.
pub(crate) fn listener_owner(port: u16) -> ListenerOwner {
    let mut found = Vec::new();
    for table in ["/proc/net/tcp", "/proc/net/tcp6"] {
        match File::open(table).and_then(|file| listeners(BufReader::new(file), port)) {
            Ok(listeners) => found.extend(listeners),
            // A kernel may have no IPv6.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(_) => return ListenerOwner::Unknown,
        }
    }
    judged(&found, geteuid().as_raw())
}

/// A socket that accepts connections to a port of 127.0.0.1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Listener {
    /// Of several, the kernel prefers the one with the lowest rank.
    rank: u8,
    uid: u32,
}

/// The sockets of a table that listen on this port. The kernel lists listening sockets first: what
/// follows may be long and is not read.
fn listeners(table: impl BufRead, port: u16) -> io::Result<Vec<Listener>> {
    let mut found = Vec::new();
    for line in table.lines().skip(1) {
        let line = line?;
        let columns: Vec<&str> = line.split_whitespace().collect();
        let [_, local, _, state, _, _, _, uid, ..] = columns[..] else {
            continue;
        };
        if state != LISTENING {
            break;
        }
        let Some((address, local_port)) = local.rsplit_once(':') else {
            continue;
        };
        if u16::from_str_radix(local_port, 16) != Ok(port) {
            continue;
        }
        if let (Some(rank), Ok(uid)) = (rank(address), uid.parse()) {
            found.push(Listener { rank, uid });
        }
    }
    Ok(found)
}

/// How closely an address fits 127.0.0.1. `None`: connections there do not reach it.
fn rank(address: &str) -> Option<u8> {
    // Groups of four bytes, each as a number of this machine.
    let loopback = format!("{:08X}", u32::from_ne_bytes([127, 0, 0, 1]));
    let mapped = format!(
        "{:016}{:08X}{loopback}",
        0,
        u32::from_ne_bytes([0, 0, 255, 255])
    );
    let ranked = [loopback, mapped, "0".repeat(8), "0".repeat(32)];
    let rank = ranked.iter().position(|known| *known == address)?;
    u8::try_from(rank).ok()
}

fn judged(found: &[Listener], own: u32) -> ListenerOwner {
    let Some(best) = found.iter().map(|listener| listener.rank).min() else {
        return ListenerOwner::None;
    };
    let mut used = found.iter().filter(|listener| listener.rank == best);
    match used.find(|listener| listener.uid != own && listener.uid != ROOT) {
        Some(foreign) => ListenerOwner::Other(foreign.uid),
        None => ListenerOwner::Trusted,
    }
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};

    use super::*;

    const TABLE: &str = "\
  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode
   0: 0100007F:2CAA 00000000:0000 0A 00000000:00000000 00:00000000 00000000  1000        0 41 1
   1: 00000000:1F90 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 42 1
   2: 0200007F:1F40 00000000:0000 0A 00000000:00000000 00:00000000 00000000     7        0 43 1
garbage
   3: 0100007F:1F90 00000000:0000 0A 00000000:00000000 00:00000000 00000000     8        0 44 1
   4: 0100007F:1F41 0100007F:8000 01 00000000:00000000 00:00000000 00000000     0        0 45 1
   5: 0100007F:1F42 00000000:0000 0A 00000000:00000000 00:00000000 00000000     9        0 46 1
";

    #[cfg(target_endian = "little")]
    #[test]
    fn listeners_are_found_by_port_and_address() {
        let read = |port| listeners(TABLE.as_bytes(), port).unwrap();
        let listener = |rank, uid| Listener { rank, uid };
        assert_eq!(read(11434), [listener(0, 1000)]);
        assert_eq!(read(8080), [listener(2, 0), listener(0, 8)]);
        assert_eq!(read(8000), [], "it listens on 127.0.0.2");
        assert_eq!(read(8001), [], "it is a connection");
        assert_eq!(read(8002), [], "no listener follows a connection");
    }

    #[test]
    fn the_closest_listener_decides() {
        let listener = |rank, uid| Listener { rank, uid };
        for (found, expected) in [
            (&[][..], ListenerOwner::None),
            (&[listener(0, 1000)], ListenerOwner::Trusted),
            (&[listener(2, 0)], ListenerOwner::Trusted),
            (&[listener(0, 1001)], ListenerOwner::Other(1001)),
            (&[listener(3, 1001), listener(0, 0)], ListenerOwner::Trusted),
            (
                &[listener(3, 0), listener(0, 1001)],
                ListenerOwner::Other(1001),
            ),
            (
                &[listener(0, 1000), listener(0, 1001)],
                ListenerOwner::Other(1001),
            ),
        ] {
            assert_eq!(judged(found, 1000), expected, "{found:?}");
        }
    }

    #[test]
    fn a_listener_of_this_process_is_trusted_and_a_closed_one_is_none() {
        for address in ["127.0.0.1:0", "0.0.0.0:0", "[::]:0"] {
            let Ok(listener) = TcpListener::bind(address) else {
                assert_eq!(address, "[::]:0", "there is always IPv4");
                continue;
            };
            let port = listener.local_addr().unwrap().port();
            let _connected = TcpStream::connect(("127.0.0.1", port)).unwrap();
            assert_eq!(listener_owner(port), ListenerOwner::Trusted, "{address}");
            drop(listener);
            assert_eq!(listener_owner(port), ListenerOwner::None, "{address}");
        }
    }
}
