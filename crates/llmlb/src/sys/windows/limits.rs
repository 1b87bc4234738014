//! Limits of this process on open files, connections and core dumps.

use std::io;

use windows_sys::Win32::Networking::WinSock::{WSAEADDRNOTAVAIL, WSAEMFILE, WSAENOBUFS};

/// Does nothing: Windows Error Reporting keeps memory only if the administrator asks for it.
pub(crate) fn disable_core_dumps() {}

/// Does nothing: Windows has no limit of open files.
pub(crate) fn raise_open_files() {}

/// Maximum number of descriptors of this process; `None` if there is no limit.
pub(crate) fn max_open_files() -> Option<u64> {
    None
}

/// Number of descriptors that this process has open; `None` if the system does not show them.
pub(crate) fn open_files() -> Option<usize> {
    None
}

/// True if a connection failed because this machine ran out of sockets, buffers or local ports.
/// Such an error says nothing about the backend and must not eject it.
pub(crate) fn is_shortage(error: &io::Error) -> bool {
    matches!(
        error.raw_os_error(),
        Some(WSAEMFILE | WSAENOBUFS | WSAEADDRNOTAVAIL)
    )
}
