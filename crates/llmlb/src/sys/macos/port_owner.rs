//! macOS could tell who uses a port (libproc), but the answer only makes a message friendlier.

use crate::sys::PortOwner;

/// Who uses a TCP port: never known here.
pub(crate) fn port_owner(_port: u16) -> Option<PortOwner> {
    None
}
