//! How many connections this process may have.

use std::io;

use rustix::io::Errno;
use rustix::process::{Resource, getrlimit, setrlimit};

/// Raises the limit of open files to what the administrator allows: every stream needs two.
pub(crate) fn raise_open_files() {
    let mut limit = getrlimit(Resource::Nofile);
    if limit.current != limit.maximum {
        limit.current = limit.maximum;
        if let Err(error) = setrlimit(Resource::Nofile, limit) {
            tracing::debug!(%error, "the limit of open files stays as it is");
        }
    }
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
