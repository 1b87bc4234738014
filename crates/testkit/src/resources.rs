//! Memory and descriptors of a process, and ports of the machine, from `/proc`.

use std::collections::BTreeSet;
use std::fs;
use std::io;

/// Returns the resident memory of a process, in bytes.
pub fn resident_memory(pid: u32) -> io::Result<u64> {
    status_field(pid, "VmRSS")
}

/// Returns the largest resident memory that a process has had so far, in bytes.
pub fn peak_memory(pid: u32) -> io::Result<u64> {
    status_field(pid, "VmHWM")
}

/// Returns the number of open descriptors of a process.
pub fn open_descriptors(pid: u32) -> io::Result<usize> {
    Ok(fs::read_dir(format!("/proc/{pid}/fd"))?.count())
}

/// Returns the local addresses of connections to this port that the connecting side closed first
/// and that still occupy a local port. Addresses that are found before a server starts belong to
/// connections to an earlier server on the same port.
pub fn closed_first(port: u16) -> io::Result<BTreeSet<String>> {
    // TCP states of an end that closed its connection first and still occupies its local port:
    // FIN_WAIT1, FIN_WAIT2, TIME_WAIT and CLOSING. The numbers are those of Linux's tcp_states.h.
    const STATES: [&str; 4] = ["04", "05", "06", "0B"];
    let port = format!(":{port:04X}");
    let local = |line: &str| {
        let mut words = line.split_whitespace().skip(1);
        let (local, remote, state) = (words.next()?, words.next()?, words.next()?);
        let is_kept = remote.ends_with(&port) && STATES.contains(&state);
        is_kept.then(|| local.to_owned())
    };
    let mut kept = BTreeSet::new();
    for table in ["/proc/net/tcp", "/proc/net/tcp6"] {
        let table = match fs::read_to_string(table) {
            // A system without IPv6 has no table of IPv6 connections. The missing file is not an
            // error.
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            table => table?,
        };
        kept.extend(table.lines().filter_map(local));
    }
    Ok(kept)
}

fn status_field(pid: u32, name: &str) -> io::Result<u64> {
    let status = fs::read_to_string(format!("/proc/{pid}/status"))?;
    let line = status.lines().find_map(|line| line.strip_prefix(name));
    let kib = line.and_then(|rest| rest.split_whitespace().nth(1));
    let kib: Option<u64> = kib.and_then(|kib| kib.parse().ok());
    let missing = || io::Error::new(io::ErrorKind::NotFound, format!("{name} of {pid}"));
    kib.map(|kib| kib << 10).ok_or_else(missing)
}
