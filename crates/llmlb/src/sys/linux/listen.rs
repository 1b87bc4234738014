//! Socket options that keep other programs off the server's port.

use std::io;
use std::net::SocketAddr;

use socket2::Socket;

/// Sets `SO_REUSEADDR`, without which a restart would fail while old connections are in TIME_WAIT.
/// On Linux a second listener on the port is rejected despite this option.
pub(crate) fn exclusive(socket: &Socket, _address: SocketAddr) -> io::Result<()> {
    socket.set_reuse_address(true)
}
