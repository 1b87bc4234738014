//! How many connections this process may have.

use std::io;

use windows_sys::Win32::Networking::WinSock::{WSAEADDRNOTAVAIL, WSAEMFILE, WSAENOBUFS};

/// There is no such limit here.
pub(crate) fn raise_open_files() {}

/// Whether a connection failed for what this machine lacks, and not for the other end.
pub(crate) fn is_shortage(error: &io::Error) -> bool {
    matches!(
        error.raw_os_error(),
        Some(WSAEMFILE | WSAENOBUFS | WSAEADDRNOTAVAIL)
    )
}
