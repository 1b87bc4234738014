//! Signals that stop the server.

use std::io;

use tenure::StopRequest;
use tokio::signal::unix::{Signal, SignalKind, signal};

/// Receiver of SIGTERM, SIGINT and SIGHUP. Once installed, these no longer kill the process.
#[derive(Debug)]
pub(crate) struct Signals {
    terminate: Signal,
    interrupt: Signal,
    hangup: Signal,
}

impl Signals {
    /// Installs the handlers. Must be called within a tokio runtime.
    pub(crate) fn install() -> io::Result<Self> {
        Ok(Self {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
            hangup: signal(SignalKind::hangup())?,
        })
    }

    /// Does nothing: on Unix `llmlb stop` sends SIGTERM, so there is no stop event to watch.
    pub(crate) fn watch(&mut self, _request: StopRequest) {}

    /// Waits for the next stop signal and returns its name for the log.
    pub(crate) async fn next(&mut self) -> &'static str {
        loop {
            tokio::select! {
                _ = self.terminate.recv() => return "SIGTERM",
                _ = self.interrupt.recv() => return "SIGINT",
                // The server keeps running when its terminal is closed.
                _ = self.hangup.recv() => tracing::info!("SIGHUP ignored"),
            }
        }
    }
}
