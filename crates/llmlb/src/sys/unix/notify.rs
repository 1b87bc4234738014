//! Sends datagrams to the service manager (systemd), such as that the server is ready.

use std::ffi::OsStr;
use std::io;
use std::os::unix::net::UnixDatagram;

/// Sends one message to the service manager's socket. A socket name that begins with `@` is in
/// Linux's abstract namespace.
pub(crate) fn send(socket: &OsStr, text: &str) -> io::Result<()> {
    let sender = UnixDatagram::unbound()?;
    #[cfg(target_os = "linux")]
    if let Some(name) = std::os::unix::ffi::OsStrExt::as_bytes(socket).strip_prefix(b"@") {
        use std::os::linux::net::SocketAddrExt;
        let address = std::os::unix::net::SocketAddr::from_abstract_name(name)?;
        sender.send_to_addr(text.as_bytes(), &address)?;
        return Ok(());
    }
    sender.send_to(text.as_bytes(), socket).map(|_| ())
}
