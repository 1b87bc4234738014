//! Keeps the wrapper alive on Ctrl-C, which reaches every program on the console. The wrapper must
//! outlive the command.

use std::io;
use std::process::{Child, Command};

use windows_sys::Win32::System::Console::SetConsoleCtrlHandler;

/// Console handler that ignores Ctrl-C and Ctrl-Break for this process.
#[derive(Debug)]
pub(crate) struct Relay(());

impl Relay {
    pub(crate) fn install() -> Self {
        // A handler is used instead of the setting "ignore", which the command would inherit.
        unsafe { SetConsoleCtrlHandler(Some(stay), 1) };
        Self(())
    }

    /// Does nothing: the command inherits no handler on Windows.
    pub(crate) fn prepare(&self, _command: &mut Command) {}

    pub(crate) fn wait(&self, child: &mut Child) -> io::Result<i32> {
        Ok(child.wait()?.code().unwrap_or(1))
    }
}

extern "system" fn stay(kind: u32) -> i32 {
    // Events 0 and 1, Ctrl-C and Ctrl-Break, are left to the command. Closing the console and
    // logging off end the wrapper too.
    i32::from(kind <= 1)
}
