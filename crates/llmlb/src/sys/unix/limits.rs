//! Limits of this process on open files, connections and core dumps.

use std::io;

use rustix::io::Errno;
use rustix::process::{Resource, getrlimit, setrlimit};

/// Highest limit that macOS accepts (`OPEN_MAX`), although it reports no maximum.
const MAX_ON_MACOS: u64 = 10_240;
/// Directory in which every Unix lists the descriptors that a process itself has open.
const OWN_DESCRIPTORS: &str = "/dev/fd";

/// Raises the soft limit of open files to the hard limit, because every request needs two
/// descriptors: one to the client and one to the backend.
pub(crate) fn raise_open_files() {
    let mut limit = getrlimit(Resource::Nofile);
    let before = limit.current;
    for wanted in [limit.maximum, Some(MAX_ON_MACOS)] {
        if before.is_none() || wanted.is_some_and(|wanted| before >= Some(wanted)) {
            return;
        }
        limit.current = wanted;
        match setrlimit(Resource::Nofile, limit) {
            Ok(()) => return,
            Err(error) => tracing::debug!(%error, ?wanted, "cannot raise the limit of open files"),
        }
    }
}

/// Keeps the kernel from writing the memory of this process, which has secrets and prompts, to a file
/// if the process crashes. A debugger still can (`gcore`).
pub(crate) fn disable_core_dumps() {
    let mut limit = getrlimit(Resource::Core);
    // Set the limit to 1 byte, with which Linux writes nothing. A limit of 0 does not prevent a
    // dump if `core_pattern` names a program.
    limit.current = Some(limit.maximum.map_or(1, |maximum| maximum.min(1)));
    if let Err(error) = setrlimit(Resource::Core, limit) {
        tracing::debug!(%error, "cannot disable core dumps");
    }
}

/// Returns the maximum number of descriptors of this process, from which the limits on connections
/// are derived; `None` if there is no limit.
pub(crate) fn max_open_files() -> Option<u64> {
    getrlimit(Resource::Nofile).current
}

/// Returns the number of descriptors that this process has open; `None` if the system does not show
/// them.
pub(crate) fn open_files() -> Option<usize> {
    let own = std::fs::read_dir(OWN_DESCRIPTORS).ok()?;
    // Subtract the descriptor with which the directory is read, which is closed again.
    Some(own.count().saturating_sub(1))
}

/// True if a connection failed because this machine ran out of descriptors, memory or local ports.
/// Such an error says nothing about the backend and must not eject it.
pub(crate) fn is_shortage(error: &io::Error) -> bool {
    error.raw_os_error().is_some_and(|code| {
        let errno = Errno::from_raw_os_error(code);
        matches!(
            errno,
            Errno::MFILE | Errno::NFILE | Errno::NOBUFS | Errno::NOMEM | Errno::ADDRNOTAVAIL
        )
    })
}
