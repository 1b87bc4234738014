//! How many connections this process may have.

use std::io;

use rustix::io::Errno;
use rustix::process::{Resource, getrlimit, setrlimit};

/// macOS reports no maximum, but rejects a limit above this one (`OPEN_MAX`).
const LARGEST_ON_MACOS: u64 = 10_240;
/// Every system shows a process its own descriptors here.
const OWN_DESCRIPTORS: &str = "/dev/fd";

/// Raises the limit of open files to what the administrator allows: every stream needs two.
pub(crate) fn raise_open_files() {
    let mut limit = getrlimit(Resource::Nofile);
    let before = limit.current;
    for wanted in [limit.maximum, Some(LARGEST_ON_MACOS)] {
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

/// Maximum number of descriptors of this process; `None` if there is no limit.
pub(crate) fn max_open_files() -> Option<u64> {
    getrlimit(Resource::Nofile).current
}

/// Number of descriptors that this process has open; `None` if the system does not show them.
pub(crate) fn open_files() -> Option<usize> {
    let own = std::fs::read_dir(OWN_DESCRIPTORS).ok()?;
    // The list itself is read through one.
    Some(own.count().saturating_sub(1))
}

/// Whether a connection failed for what this machine lacks, and not for the other end.
pub(crate) fn is_shortage(error: &io::Error) -> bool {
    error.raw_os_error().is_some_and(|code| {
        let errno = Errno::from_raw_os_error(code);
        matches!(
            errno,
            Errno::MFILE | Errno::NFILE | Errno::NOBUFS | Errno::NOMEM | Errno::ADDRNOTAVAIL
        )
    })
}
