//! Being asked to end.

use std::io;
use std::thread;
use std::time::Duration;

use tenure::StopRequest;
use tokio::signal::windows::{CtrlBreak, CtrlC, CtrlClose, CtrlShutdown};
use tokio::signal::windows::{ctrl_break, ctrl_c, ctrl_close, ctrl_shutdown};
use tokio::sync::mpsc;

/// The console's events, and the event that `llmlb stop` sets.
#[derive(Debug)]
pub(crate) struct Signals {
    ctrl_c: CtrlC,
    ctrl_break: CtrlBreak,
    close: CtrlClose,
    shutdown: CtrlShutdown,
    requests: mpsc::Receiver<()>,
    asked: mpsc::Sender<()>,
}

impl Signals {
    /// Must be called within a runtime.
    pub(crate) fn install() -> io::Result<Self> {
        let (asked, requests) = mpsc::channel(1);
        Ok(Self {
            ctrl_c: ctrl_c()?,
            ctrl_break: ctrl_break()?,
            close: ctrl_close()?,
            shutdown: ctrl_shutdown()?,
            requests,
            asked,
        })
    }

    /// Listens to `llmlb stop` as well.
    pub(crate) fn watch(&mut self, request: StopRequest) {
        let asked = self.asked.clone();
        // The thread ends with the process: it has nothing to clean up.
        thread::spawn(move || {
            while !request.wait(Duration::from_secs(3600)) {}
            let _ = asked.blocking_send(());
        });
    }

    /// Waits for the next one and says what it was.
    pub(crate) async fn next(&mut self) -> &'static str {
        tokio::select! {
            _ = self.ctrl_c.recv() => "Ctrl-C",
            _ = self.ctrl_break.recv() => "Ctrl-Break",
            _ = self.close.recv() => "the closed console",
            _ = self.shutdown.recv() => "the system's shutdown",
            _ = self.requests.recv() => "llmlb stop",
        }
    }
}
