//! Being asked to end.

use std::io;

use tenure::StopRequest;
use tokio::signal::unix::{Signal, SignalKind, signal};

/// The signals that ask for an end. From its creation on they no longer kill the process.
#[derive(Debug)]
pub(crate) struct Signals {
    terminate: Signal,
    interrupt: Signal,
    hangup: Signal,
}

impl Signals {
    /// Must be called within a runtime.
    pub(crate) fn install() -> io::Result<Self> {
        Ok(Self {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
            hangup: signal(SignalKind::hangup())?,
        })
    }

    /// Only where there are no signals is anything else needed.
    pub(crate) fn watch(&mut self, _request: StopRequest) {}

    /// Waits for the next one and says what it was.
    pub(crate) async fn next(&mut self) -> &'static str {
        loop {
            tokio::select! {
                _ = self.terminate.recv() => return "SIGTERM",
                _ = self.interrupt.recv() => return "SIGINT",
                // A terminal that is closed is no reason to end.
                _ = self.hangup.recv() => tracing::info!("SIGHUP: nothing changes"),
            }
        }
    }
}
