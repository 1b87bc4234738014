//! Signals that stop the server or make it read its configuration again.

use std::fs::File;
use std::io;
use std::os::unix::fs::OpenOptionsExt;

use rustix::fs::OFlags;
use tenure::StopRequest;
use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::sys::{self, SignalEvent};

/// Receiver of SIGTERM, SIGINT and SIGHUP. Once it is installed, these signals no longer kill the
/// process.
#[derive(Debug)]
pub(crate) struct Signals {
    terminate: Signal,
    interrupt: Signal,
    hangup: Signal,
    /// True if SIGHUP means that the terminal was closed, so that the server drains. Otherwise
    /// SIGHUP requests a reload of the configuration.
    hangup_stops: bool,
}

impl Signals {
    pub(crate) fn install() -> io::Result<Self> {
        // Read now if SIGHUP is ignored, as `nohup` sets it so that the program outlives its
        // terminal: once the handler is installed, the signal is no longer ignored.
        let is_ignored = sys::is_hangup_ignored();
        Ok(Self {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
            hangup: signal(SignalKind::hangup())?,
            hangup_stops: has_terminal() && !is_ignored,
        })
    }

    /// Does nothing: on Unix `llmlb stop` sends SIGTERM, so there is no stop event to watch.
    pub(crate) fn watch(&mut self, _request: StopRequest) {}

    pub(crate) async fn next(&mut self) -> SignalEvent {
        tokio::select! {
            _ = self.terminate.recv() => SignalEvent::Stop("SIGTERM"),
            _ = self.interrupt.recv() => SignalEvent::Stop("SIGINT"),
            _ = self.hangup.recv() => {
                if self.hangup_stops {
                    SignalEvent::Stop("SIGHUP (the terminal was closed)")
                } else {
                    SignalEvent::Reload
                }
            }
        }
    }
}

/// True if the process has a controlling terminal. It must be called at the start, because a closed
/// terminal cannot be opened any more.
fn has_terminal() -> bool {
    let flags = OFlags::NOCTTY | OFlags::NONBLOCK;
    let flags = i32::try_from(flags.bits()).unwrap_or_default();
    File::options()
        .read(true)
        .custom_flags(flags)
        .open("/dev/tty")
        .is_ok()
}
