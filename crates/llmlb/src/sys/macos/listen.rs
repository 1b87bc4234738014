//! A port of one's own.

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream};
use std::time::Duration;

use socket2::Socket;

/// How long a listener on this machine may take to be seen.
const AT_ONCE: Duration = Duration::from_millis(200);

/// The option is needed to restart a server while its last connections have not quite ended. Here
/// it also lets two programs listen on one port, one on a single address and one on all of them;
/// so we look whether somebody answers there.
pub(crate) fn exclusive(socket: &Socket, address: SocketAddr) -> io::Result<()> {
    socket.set_reuse_address(true)?;
    if address.port() == 0 {
        return Ok(());
    }
    let answers = |address: SocketAddr| TcpStream::connect_timeout(&address, AT_ONCE).is_ok();
    if answers((Ipv4Addr::LOCALHOST, address.port()).into())
        || answers((Ipv6Addr::LOCALHOST, address.port()).into())
        || (!address.ip().is_unspecified() && answers(address))
    {
        return Err(io::ErrorKind::AddrInUse.into());
    }
    Ok(())
}
