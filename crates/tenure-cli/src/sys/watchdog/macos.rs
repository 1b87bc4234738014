//! Descendants of the command on macOS: the members of its process group. macOS has no child
//! subreaper, so a descendant that leaves the group is not found.

use std::io;
use std::os::fd::BorrowedFd;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::time::Duration;

use rustix::process::{Pid, Signal};

/// Maximum wait for an event. The time-out of `poll` does not count while the machine is asleep, so
/// a longer wait would end long after the deadline of the lease.
const LONGEST_WAIT: Duration = Duration::from_millis(250);

/// Returns the path of the program to start as the watchdog, the one that this process runs.
pub(super) fn own_program() -> io::Result<std::path::PathBuf> {
    std::env::current_exe()
}

/// Does nothing: macOS has no child subreaper, so orphans become children of the system's first
/// process.
pub(super) fn adopt_orphans() -> io::Result<()> {
    Ok(())
}

/// Starts the command in a process group of its own, which gets the terminal if the group of the
/// wrapper has it.
pub(super) fn prepare(command: &mut Command) {
    command.process_group(0);
    // SAFETY: the call only returns an id.
    let group = unsafe { libc::getpgrp() };
    let take_terminal = move || {
        // SAFETY: plain numbers. SIGTTOU is ignored here, so that the call does not stop the process.
        unsafe {
            if libc::tcgetpgrp(0) == group {
                libc::tcsetpgrp(0, libc::getpid());
            }
        }
        Ok(())
    };
    // SAFETY: the closure only makes system calls, which is allowed between fork and exec.
    unsafe { command.pre_exec(take_terminal) };
}

/// Does nothing: the watchdog must stay in the session to return the terminal.
pub(super) fn leave_the_group() {}

/// Makes the group of the wrapper the terminal's foreground group again, because the command's
/// group has ended.
pub(super) fn return_terminal(command: Pid) {
    // SAFETY: plain numbers. The watchdog ignores SIGTTOU.
    unsafe {
        if libc::tcgetpgrp(0) == command.as_raw_nonzero().get() {
            libc::tcsetpgrp(0, libc::getpgrp());
        }
    }
}

/// Process group of the command. `None` if the command was not started.
#[derive(Clone, Copy, Debug)]
pub(super) struct Descendants(Option<Pid>);

impl Descendants {
    pub(super) fn new(command: Option<Pid>) -> Self {
        Self(command)
    }

    /// True if the group has members, which need not be children of this process.
    pub(super) fn has_others(self) -> bool {
        self.0
            .is_some_and(|group| rustix::process::test_kill_process_group(group).is_ok())
    }

    pub(super) fn signal(self, signal: Signal) {
        if let Some(group) = self.0 {
            let _ = rustix::process::kill_process_group(group, signal);
        }
    }

    /// Kills the members of the group. Returns 1 if this process may signal none of them.
    pub(super) fn kill(self) -> u32 {
        let kill = |group| rustix::process::kill_process_group(group, Signal::KILL);
        u32::from(self.0.map(kill) == Some(Err(rustix::io::Errno::PERM)))
    }
}

/// Alarm without a timer descriptor: `poll` wakes up often enough to notice the time.
#[derive(Debug)]
pub(super) struct Alarm;

impl Alarm {
    pub(super) fn new() -> io::Result<Self> {
        Ok(Self)
    }

    pub(super) fn set(&self, _at: Duration) -> io::Result<()> {
        Ok(())
    }

    pub(super) fn fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    /// Longest time that `poll` may wait until this time of the boot clock.
    pub(super) fn longest_wait(&self, until: Duration) -> Option<Duration> {
        let left = until.saturating_sub(tenure::boot_time());
        Some(left.min(LONGEST_WAIT))
    }
}
