//! A port of one's own.

use std::io;
use std::net::SocketAddr;

use socket2::Socket;

/// Nobody else can listen on a port that is listened on. What the option allows is to bind a port
/// whose last connections have not quite ended: without it, a server could not be restarted.
pub(crate) fn exclusive(socket: &Socket, _address: SocketAddr) -> io::Result<()> {
    socket.set_reuse_address(true)
}
