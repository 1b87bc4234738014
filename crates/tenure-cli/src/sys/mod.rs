//! Forwarding signals and exit codes between the caller and the command, for each operating system.

#[cfg(unix)]
#[expect(
    unsafe_code,
    reason = "signal handlers have no safe wrapper in the standard library"
)]
mod unix;
#[cfg(unix)]
pub(crate) use unix::{Relay, ignore_broken_pipes};

#[cfg(windows)]
#[expect(
    unsafe_code,
    reason = "console handlers have no safe wrapper in the standard library"
)]
mod windows;
#[cfg(windows)]
pub(crate) use windows::Relay;

#[cfg(unix)]
#[path = "shell_unix.rs"]
pub(crate) mod shell;
#[cfg(windows)]
#[path = "shell_windows.rs"]
pub(crate) mod shell;
