//! Everything that differs between operating systems, under the same names on each.
//!
//! - `file`: directories and lock files: open without following links, lock, check, write, remove
//! - `deletion_guard`: excludes a second owner when the lock file is deleted, and wakes waiting
//!   processes
//! - `attest`: proves which process has a lock
//! - `process`: identities, users and states of processes
//! - `signal`: asks a proven process to exit, and waits for it
//! - `inherit`: passes the lock to a command
//! - `clock`: a clock that counts while the machine is suspended

pub(crate) mod types;

#[cfg(not(target_os = "linux"))]
pub(crate) mod by_identity;
#[cfg(not(target_os = "linux"))]
pub(crate) use by_identity as attest;
#[cfg(not(target_os = "linux"))]
mod polling;

#[cfg(unix)]
mod unix;
#[cfg(unix)]
pub(crate) use unix::{clock, file, inherit};

#[cfg(target_os = "linux")]
mod linux;
#[cfg(target_os = "linux")]
pub(crate) use linux::{attest, deletion_guard, process, signal};

#[cfg(target_os = "macos")]
mod macos;
#[cfg(target_os = "macos")]
pub(crate) use macos::{deletion_guard, process, signal};

#[cfg(windows)]
#[expect(unsafe_code, reason = "the Windows API is foreign code")]
mod windows;
#[cfg(windows)]
pub(crate) use windows::{clock, deletion_guard, file, inherit, process, signal};

#[cfg(not(any(target_os = "linux", target_os = "macos", windows)))]
compile_error!("tenure supports Linux, macOS and Windows");
