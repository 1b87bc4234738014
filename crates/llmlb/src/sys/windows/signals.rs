//! Receives the events that stop the server on Windows. A changed configuration file is read
//! without an event.

use std::io;
use std::thread;
use std::time::Duration;

use tenure::StopRequest;
use tokio::signal::windows::{CtrlBreak, CtrlC, CtrlClose, CtrlShutdown};
use tokio::signal::windows::{ctrl_break, ctrl_c, ctrl_close, ctrl_shutdown};
use tokio::sync::mpsc;

use crate::sys::SignalEvent;

/// Receiver of the console's events and of the event that `llmlb stop` sets.
#[derive(Debug)]
pub(crate) struct Signals {
    ctrl_c: CtrlC,
    ctrl_break: CtrlBreak,
    close: CtrlClose,
    shutdown: CtrlShutdown,
    stop_requests: mpsc::Receiver<()>,
    stop_requested: mpsc::Sender<()>,
}

impl Signals {
    pub(crate) fn install() -> io::Result<Self> {
        let (stop_requested, stop_requests) = mpsc::channel(1);
        Ok(Self {
            ctrl_c: ctrl_c()?,
            ctrl_break: ctrl_break()?,
            close: ctrl_close()?,
            shutdown: ctrl_shutdown()?,
            stop_requests,
            stop_requested,
        })
    }

    /// Watches for the event that `llmlb stop` sets, because Windows has no SIGTERM.
    pub(crate) fn watch(&mut self, request: StopRequest) {
        let stop_requested = self.stop_requested.clone();
        // The thread blocks until the process exits. It is never joined, because it holds nothing
        // that needs cleanup.
        thread::spawn(move || {
            while !request.wait(Duration::from_secs(3600)) {}
            let _ = stop_requested.blocking_send(());
        });
    }

    /// Waits for the next reason to stop: Ctrl-C, Ctrl-Break, the closed console, the shutdown of the
    /// system, or `llmlb stop`.
    pub(crate) async fn next(&mut self) -> SignalEvent {
        let name = tokio::select! {
            _ = self.ctrl_c.recv() => "Ctrl-C",
            _ = self.ctrl_break.recv() => "Ctrl-Break",
            _ = self.close.recv() => "the closed console",
            _ = self.shutdown.recv() => "the system's shutdown",
            _ = self.stop_requests.recv() => "llmlb stop",
        };
        SignalEvent::Stop(name)
    }
}
