//! Running the command for each operating system: forwarding signals and exit codes, and ending the
//! command with its lease.

use std::ffi::OsString;
use std::io;
use std::time::Duration;

/// A command that may run only while a lease is valid.
#[derive(Debug)]
pub(crate) struct LeasedCommand<'a> {
    pub(crate) words: &'a [OsString],
    /// Fencing token that the command finds in its environment and can send with every write.
    pub(crate) token: u64,
    /// Time by which SIGTERM is sent to the command before the deadline of the lease.
    #[cfg_attr(
        windows,
        expect(dead_code, reason = "Windows has no watchdog process and no SIGTERM")
    )]
    pub(crate) notice: Duration,
    /// Time after the loss of the lease in which the watchdog must have ended the command and its
    /// descendants. After it, the wrapper ends them.
    #[cfg_attr(
        windows,
        expect(dead_code, reason = "Windows has no watchdog process and no SIGTERM")
    )]
    pub(crate) patience: Duration,
}

/// Reason why a command on a lease has ended. Its descendants have ended too.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ending {
    /// The command exited with this code, or was ended by a signal (128 and its number).
    Exited(i32),
    /// The command was ended because its lease was lost, or was not renewed in time.
    LeaseLost,
    /// The watchdog process was killed, and the wrapper ended the command.
    #[cfg_attr(
        windows,
        expect(dead_code, reason = "Windows has no watchdog process and no SIGTERM")
    )]
    WatchdogEnded,
}

/// Reason why a command on a lease was not started.
#[derive(Debug)]
pub(crate) enum StartError {
    /// The watchdog process could not be started.
    #[cfg_attr(
        windows,
        expect(dead_code, reason = "Windows has no watchdog process and no SIGTERM")
    )]
    Watchdog(io::Error),
    /// The command could not be started.
    Command(io::Error),
    /// The lease was lost before the command was started.
    LeaseLost,
}

#[cfg(unix)]
#[expect(
    unsafe_code,
    reason = "signal handlers have no safe wrapper in the standard library"
)]
mod unix;
#[cfg(unix)]
pub(crate) use unix::{Relay, ignore_broken_pipes, open_standard_descriptors};
#[cfg(unix)]
#[expect(
    unsafe_code,
    reason = "preparing a process between fork and exec has no safe wrapper"
)]
pub(crate) mod watchdog;
#[cfg(unix)]
pub(crate) use watchdog::supervise;

#[cfg(windows)]
#[expect(
    unsafe_code,
    reason = "console handlers have no safe wrapper in the standard library"
)]
mod windows;
#[cfg(windows)]
pub(crate) use windows::{Relay, open_standard_descriptors, supervise};

#[cfg(unix)]
#[path = "shell_unix.rs"]
pub(crate) mod shell;
#[cfg(windows)]
#[path = "shell_windows.rs"]
pub(crate) mod shell;
