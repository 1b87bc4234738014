//! How many connections this process may have.

use std::io;

use windows_sys::Win32::Networking::WinSock::{WSAEADDRNOTAVAIL, WSAEMFILE, WSAENOBUFS};

/// There is no such limit here.
pub(crate) fn raise_open_files() {}

/// Maximum number of descriptors of this process; `None` if there is no limit.
pub(crate) fn max_open_files() -> Option<u64> {
    None
}

/// Number of descriptors that this process has open; `None` if the system does not show them.
pub(crate) fn open_files() -> Option<usize> {
    None
}

/// Whether a connection failed for what this machine lacks, and not for the other end.
pub(crate) fn is_shortage(error: &io::Error) -> bool {
    matches!(
        error.raw_os_error(),
        Some(WSAEMFILE | WSAENOBUFS | WSAEADDRNOTAVAIL)
    )
}
