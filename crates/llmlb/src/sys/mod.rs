//! What differs between systems, under the same names.

#[cfg(target_os = "linux")]
mod linux;
#[cfg(target_os = "macos")]
mod macos;
mod owner;
#[cfg(unix)]
mod unix;
#[cfg(windows)]
mod windows;

#[cfg(target_os = "linux")]
pub(crate) use linux::{listen, port_owner::port_owner};
#[cfg(target_os = "macos")]
pub(crate) use macos::{listen, port_owner::port_owner};
#[cfg(unix)]
pub(crate) use unix::{limits, notify, signals};
#[cfg(windows)]
pub(crate) use windows::{limits, listen, notify, port_owner::port_owner, signals};

pub(crate) use owner::PortOwner;
