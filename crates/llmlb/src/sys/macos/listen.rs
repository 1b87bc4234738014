//! Socket options that keep other programs off the server's port.

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream};
use std::time::Duration;

use socket2::Socket;

/// Maximum time of a test connection, which shows if another program on this machine listens on the
/// server's port.
const CONNECT_TIMEOUT: Duration = Duration::from_millis(200);

/// Sets `SO_REUSEADDR`, without which a restart would fail while old connections are in TIME_WAIT.
///
/// On macOS `SO_REUSEADDR` also lets two programs listen on one port, one on a single address and
/// one on all addresses. So llmlb connects to the port first, and treats the port as in use if the
/// connection is accepted.
pub(crate) fn exclusive(socket: &Socket, address: SocketAddr) -> io::Result<()> {
    socket.set_reuse_address(true)?;
    if address.port() == 0 {
        return Ok(());
    }
    let accepts =
        |address: SocketAddr| TcpStream::connect_timeout(&address, CONNECT_TIMEOUT).is_ok();
    if accepts((Ipv4Addr::LOCALHOST, address.port()).into())
        || accepts((Ipv6Addr::LOCALHOST, address.port()).into())
        || (!address.ip().is_unspecified() && accepts(address))
    {
        return Err(io::ErrorKind::AddrInUse.into());
    }
    Ok(())
}
