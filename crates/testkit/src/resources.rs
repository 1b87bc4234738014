//! Memory and descriptors of a process, from `/proc`.

use std::fs;
use std::io;

/// Returns the resident memory in bytes.
pub fn resident_memory(pid: u32) -> io::Result<u64> {
    status_field(pid, "VmRSS")
}

/// Returns the largest resident memory so far, in bytes.
pub fn peak_memory(pid: u32) -> io::Result<u64> {
    status_field(pid, "VmHWM")
}

/// Returns the number of open descriptors.
pub fn open_descriptors(pid: u32) -> io::Result<usize> {
    Ok(fs::read_dir(format!("/proc/{pid}/fd"))?.count())
}

fn status_field(pid: u32, name: &str) -> io::Result<u64> {
    let status = fs::read_to_string(format!("/proc/{pid}/status"))?;
    let line = status.lines().find_map(|line| line.strip_prefix(name));
    let kib = line.and_then(|rest| rest.split_whitespace().nth(1));
    let kib: Option<u64> = kib.and_then(|kib| kib.parse().ok());
    let missing = || io::Error::new(io::ErrorKind::NotFound, format!("{name} of {pid}"));
    kib.map(|kib| kib << 10).ok_or_else(missing)
}
