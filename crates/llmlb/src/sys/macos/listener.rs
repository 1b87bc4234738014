//! The user whose program listens on a port: not found out here.

use crate::sys::ListenerOwner;

pub(crate) fn listener_owner(_port: u16) -> ListenerOwner {
    ListenerOwner::Unknown
}
