//! Finds the user whose program listens on a port, so that prompts are not sent to another user's
//! server.

use std::fs::File;
use std::io::{self, BufRead, BufReader};

use rustix::process::geteuid;

use crate::sys::ListenerOwner;

/// State of a listening socket in `/proc/net/tcp`.
const LISTENING: &str = "0A";
const ROOT: u32 = 0;

/// Returns the user who owns the socket that accepts connections to this port of 127.0.0.1.
pub(crate) fn listener_owner(port: u16) -> ListenerOwner {
    let mut found = Vec::new();
    for table in ["/proc/net/tcp", "/proc/net/tcp6"] {
        match File::open(table).and_then(|file| listeners(BufReader::new(file), port)) {
            Ok(listeners) => found.extend(listeners),
            // A kernel without IPv6 has no table of IPv6 sockets, so there are no listeners in it.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(_) => return ListenerOwner::Unknown,
        }
    }
    classify(&found, geteuid().as_raw())
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Listener {
    /// The kernel passes a connection to the listener with the lowest rank.
    rank: u8,
    uid: u32,
}

/// Returns the sockets of a table that listen on this port. The kernel lists listening sockets
/// first, so reading stops at the first other one: thousands of connections may follow.
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

/// Returns the rank of a listener by its address: 127.0.0.1 itself in front of all addresses.
/// `None` if connections to 127.0.0.1 do not reach this listener.
fn rank(address: &str) -> Option<u8> {
    // The kernel's table shows each group of four address bytes as a number in this machine's byte
    // order.
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

fn classify(found: &[Listener], own: u32) -> ListenerOwner {
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
    fn owner_is_that_of_the_listener_with_the_lowest_rank() {
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
            assert_eq!(classify(found, 1000), expected, "{found:?}");
        }
    }

    #[test]
    fn listener_of_this_process_is_trusted_until_it_is_closed() {
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
