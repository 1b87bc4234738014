//! Ctrl-C reaches every program on the console; the wrapper must outlive the command.

use std::io;
use std::process::{Child, Command};

use windows_sys::Win32::System::Console::SetConsoleCtrlHandler;

/// While installed, Ctrl-C and Ctrl-Break do not end this process.
#[derive(Debug)]
pub(crate) struct Relay(());

impl Relay {
    pub(crate) fn install() -> Self {
        // A handler, not "ignore": ignoring would be inherited by the command.
        // SAFETY: the handler is a plain function that lives as long as the program.
        unsafe { SetConsoleCtrlHandler(Some(stay), 1) };
        Self(())
    }

    /// Nothing that is ours is inherited.
    pub(crate) fn prepare(&self, _command: &mut Command) {}

    pub(crate) fn wait(&self, child: &mut Child) -> io::Result<i32> {
        Ok(child.wait()?.code().unwrap_or(1))
    }
}

extern "system" fn stay(kind: u32) -> i32 {
    // Ctrl-C and Ctrl-Break are the command's to answer; closing and logging off end us too.
    i32::from(kind <= 1)
}
