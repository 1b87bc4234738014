//! Socket options that keep other programs off the server's port.

use std::io;
use std::net::SocketAddr;
use std::os::windows::io::AsRawSocket;

use socket2::Socket;
use windows_sys::Win32::Networking::WinSock::{SO_EXCLUSIVEADDRUSE, SOL_SOCKET, setsockopt};

/// Sets `SO_EXCLUSIVEADDRUSE`, without which another program could bind the same port and receive
/// the server's connections.
#[expect(unsafe_code, reason = "socket2 has no function for this option")]
pub(crate) fn exclusive(socket: &Socket, _address: SocketAddr) -> io::Result<()> {
    let on: i32 = 1;
    // SAFETY: the socket is open, and the pointer and the length describe `on`.
    let failed = unsafe {
        setsockopt(
            socket.as_raw_socket() as usize,
            SOL_SOCKET,
            SO_EXCLUSIVEADDRUSE,
            (&raw const on).cast(),
            size_of::<i32>() as i32,
        )
    };
    if failed == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}
