//! Keeps the wrapper alive on Ctrl-C, which reaches every program on the console. The wrapper must
//! outlive the command.

use std::io;
use std::process::{Child, Command};
use std::time::Duration;

use tenure::Tenure;
use windows_sys::Win32::System::Console::SetConsoleCtrlHandler;

use super::{Ending, LeasedCommand, StartError};

/// Interval between two checks for the end of the command and the loss of its lease.
const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// Does nothing: on Windows a newly opened file cannot get the number of a closed standard stream.
#[expect(
    clippy::unnecessary_wraps,
    reason = "the function can fail on other systems"
)]
pub(crate) fn open_standard_descriptors() -> io::Result<()> {
    Ok(())
}

/// Handler of console events: Ctrl-C and Ctrl-Break do not end this process.
#[derive(Debug)]
pub(crate) struct Relay(());

impl Relay {
    pub(crate) fn install() -> Self {
        // A handler is installed instead of ignoring Ctrl-C, because the command would inherit that
        // it is ignored.
        unsafe { SetConsoleCtrlHandler(Some(stay), 1) };
        Self(())
    }

    /// Does nothing: on Windows the command inherits no handlers of the wrapper.
    pub(crate) fn prepare(&self, _command: &mut Command) {}

    pub(crate) fn wait(&self, child: &mut Child) -> io::Result<i32> {
        Ok(child.wait()?.code().unwrap_or(1))
    }
}

extern "system" fn stay(kind: u32) -> i32 {
    // Events 0 and 1 are Ctrl-C and Ctrl-Break, which the command handles. Other events, closing
    // the console and logging off, end the wrapper too.
    i32::from(kind <= 1)
}

/// Runs a command on a lease, in a job that ends together with this process. There is no watchdog
/// process: a suspended wrapper does not end the command.
pub(crate) fn supervise(
    tenure: &mut Tenure,
    _relay: &Relay,
    leased: &LeasedCommand<'_>,
) -> Result<Ending, StartError> {
    let Some((program, arguments)) = leased.words.split_first() else {
        return Err(StartError::Command(io::ErrorKind::InvalidInput.into()));
    };
    let Some(lease) = tenure.lease_state().filter(|lease| !lease.is_lost()) else {
        return Err(StartError::LeaseLost);
    };
    let mut command = Command::new(program);
    command
        .args(arguments)
        .env("TENURE_TOKEN", leased.token.to_string());
    let mut running = tenure.spawn(&mut command).map_err(StartError::Command)?;
    // Dropping `running` closes the job, which kills the command and all its descendants.
    loop {
        match running.child.try_wait() {
            Ok(Some(status)) => return Ok(Ending::Exited(status.code().unwrap_or(1))),
            Ok(None) => {}
            Err(error) => return Err(StartError::Command(error)),
        }
        let Some(deadline) = lease.deadline() else {
            return Ok(Ending::LeaseLost);
        };
        // End the command after a stop request, because Windows has no signal that asks a program
        // to exit.
        if lease.is_stop_requested() {
            return Ok(Ending::Exited(1));
        }
        lease.wait_for_change(Some(deadline), POLL_INTERVAL);
    }
}
