//! Binding a port that nobody else may have.

use std::io;
use std::net::{SocketAddr, TcpListener};

use socket2::{Domain, Protocol, Socket, Type};

use crate::sys;

/// How many connections may wait to be accepted; the system may allow fewer.
const BACKLOG: i32 = 4096;

/// Binds and listens. No other program can bind the port while the socket is open.
pub(crate) fn listen(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = Socket::new(
        Domain::for_address(address),
        Type::STREAM,
        Some(Protocol::TCP),
    )?;
    if address.is_ipv6() && address.ip().is_unspecified() {
        // `::` means every address, on every system.
        socket.set_only_v6(false)?;
    }
    sys::listen::exclusive(&socket, address)?;
    socket.bind(&address.into())?;
    socket.listen(BACKLOG)?;
    socket.set_nonblocking(true)?;
    Ok(socket.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(text: &str) -> SocketAddr {
        text.parse().unwrap()
    }

    #[test]
    fn a_port_is_bound_once_whatever_the_address() {
        let first = listen(address("127.0.0.1:0")).unwrap();
        let port = first.local_addr().unwrap().port();
        for other in ["127.0.0.1", "0.0.0.0", "[::]"] {
            let error = listen(address(&format!("{other}:{port}"))).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::AddrInUse, "{other}");
        }
    }

    #[test]
    fn a_port_can_be_bound_again_at_once() {
        let first = listen(address("127.0.0.1:0")).unwrap();
        let port = first.local_addr().unwrap().port();
        // A connection that the server closes first leaves the port in TIME_WAIT.
        let client = std::net::TcpStream::connect(("127.0.0.1", port)).unwrap();
        first.set_nonblocking(false).unwrap();
        drop(first.accept().unwrap());
        drop(client);
        drop(first);
        listen(address(&format!("127.0.0.1:{port}"))).unwrap();
    }
}
