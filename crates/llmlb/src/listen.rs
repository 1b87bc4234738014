//! Binds the server's port exclusively, so that no other program can receive its connections.

use std::io;
use std::net::{SocketAddr, TcpListener};

use socket2::{Domain, Protocol, Socket, Type};

use crate::sys;

/// Maximum number of connections that wait in the kernel to be accepted. The system may allow
/// fewer.
const BACKLOG: i32 = 4096;

/// Binds the address and listens. No other program can bind the port while the socket is open.
pub(crate) fn listen(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = Socket::new(
        Domain::for_address(address),
        Type::STREAM,
        Some(Protocol::TCP),
    )?;
    if address.is_ipv6() && address.ip().is_unspecified() {
        // Let `::` accept IPv4 as well on every system. Some systems default to IPv6 only.
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
    fn second_bind_of_a_port_fails_on_any_address() {
        let first = listen(address("127.0.0.1:0")).unwrap();
        let port = first.local_addr().unwrap().port();
        for other in ["127.0.0.1", "0.0.0.0", "[::]"] {
            let error = listen(address(&format!("{other}:{port}"))).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::AddrInUse, "{other}");
        }
    }

    #[test]
    fn port_in_time_wait_can_be_bound_again() {
        let first = listen(address("127.0.0.1:0")).unwrap();
        let port = first.local_addr().unwrap().port();
        // A connection that the server closes first leaves the port in TIME_WAIT. A restart must
        // still be able to bind it.
        let client = std::net::TcpStream::connect(("127.0.0.1", port)).unwrap();
        first.set_nonblocking(false).unwrap();
        drop(first.accept().unwrap());
        drop(client);
        drop(first);
        listen(address(&format!("127.0.0.1:{port}"))).unwrap();
    }
}
