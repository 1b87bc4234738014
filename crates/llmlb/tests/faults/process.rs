//! Processes that a test kills, stops or terminates.

use std::path::Path;
use std::process::{Command, ExitStatus};

use testkit::{Process, eventually};

/// Process that runs until it is killed. Its output is appended to a log.
pub(crate) struct Running(Process);

impl Running {
    pub(crate) fn start(command: &mut Command, log: &Path) -> Self {
        Self(Process::start(command, log, log).unwrap())
    }

    pub(crate) fn pid(&self) -> u32 {
        self.0.pid()
    }

    pub(crate) fn ended(&self) -> Option<ExitStatus> {
        self.0.exit_status().unwrap()
    }

    /// Kills the process. Fails the test if the process has ended by itself, because that is a
    /// crash which the test must not hide.
    pub(crate) fn kill(self) {
        if let Some(status) = self.ended() {
            panic!(
                "the process ended by itself, {status}; {}",
                self.last_lines()
            );
        }
        self.0.kill();
    }

    /// Sends SIGTERM and waits until the process ends with success.
    #[track_caller]
    pub(crate) fn terminate(self) {
        self.0.terminate().unwrap();
        let status = eventually("the process ends", || self.ended());
        assert!(status.success(), "{status}; {}", self.last_lines());
    }

    /// Suspends the process with SIGSTOP. The process makes no progress, but keeps its locks, so
    /// that other processes find them held.
    pub(crate) fn halt(&self) {
        // The signal cannot reach another process: the process was not waited for, so its id is not
        // reused even if it has ended.
        self.0.signal(rustix::process::Signal::STOP).unwrap();
    }

    fn last_lines(&self) -> String {
        let output = self.0.output();
        let end: Vec<_> = output.lines().rev().take(20).collect();
        format!("last lines, newest first: {end:#?}")
    }
}
