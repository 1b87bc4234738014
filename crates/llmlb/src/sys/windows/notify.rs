//! Notification of the service manager, which does nothing on Windows, where systemd does not
//! exist.

use std::ffi::OsStr;
use std::io;

/// Does nothing.
pub(crate) fn send(_socket: &OsStr, _text: &str) -> io::Result<()> {
    Ok(())
}
