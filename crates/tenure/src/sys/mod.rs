//! Everything that differs between operating systems, under the same names on each.
//!
//! - `file`: directories and lock files: open without following, lock, check, write, remove
//! - `guard`: what keeps a second owner out when the lock file is deleted, and how to wait
//! - `attest`: what the system says about who has a lock
//! - `process`: who is who
//! - `signal`: asking a proven process to end, and waiting for it
//! - `inherit`: handing the lock to a command

pub(crate) mod testimony;

#[cfg(not(target_os = "linux"))]
pub(crate) mod by_identity;
#[cfg(not(target_os = "linux"))]
pub(crate) use by_identity as attest;
#[cfg(not(target_os = "linux"))]
mod polling;

#[cfg(unix)]
mod unix;
#[cfg(unix)]
pub(crate) use unix::{file, inherit};

#[cfg(target_os = "linux")]
mod linux;
#[cfg(target_os = "linux")]
pub(crate) use linux::{attest, guard, process, signal};

#[cfg(target_os = "macos")]
mod macos;
#[cfg(target_os = "macos")]
pub(crate) use macos::{guard, process, signal};

#[cfg(windows)]
#[expect(unsafe_code, reason = "the Windows API is foreign code")]
mod windows;
#[cfg(windows)]
pub(crate) use windows::{file, guard, inherit, process, signal};

#[cfg(not(any(target_os = "linux", target_os = "macos", windows)))]
compile_error!("tenure supports Linux, macOS and Windows");
