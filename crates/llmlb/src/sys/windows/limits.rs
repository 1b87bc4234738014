//! Limits of this process on open files, connections and core dumps.

use std::io;

use windows_sys::Win32::Networking::WinSock::{WSAEADDRNOTAVAIL, WSAEMFILE, WSAENOBUFS};

/// Does nothing, because Windows Error Reporting keeps the memory of a crashed process only if the
/// administrator requests it.
pub(crate) fn disable_core_dumps() {}

/// Does nothing, because Windows has no limit of open files.
pub(crate) fn raise_open_files() {}

/// Returns `None`, because Windows has no limit of descriptors.
pub(crate) fn max_open_files() -> Option<u64> {
    None
}

/// Returns `None`: the number of open descriptors is not determined on Windows.
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
