//! Notification of the service manager: systemd does not exist on Windows.

use std::ffi::OsStr;
use std::io;

/// Does nothing.
pub(crate) fn send(_socket: &OsStr, _text: &str) -> io::Result<()> {
    Ok(())
}
