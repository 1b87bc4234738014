//! Notifies systemd (`Type=notify`) that the server is ready or is stopping.

use std::ffi::OsString;
use std::time::Duration;

use crate::sys;

/// Socket of the service manager; `None` if `NOTIFY_SOCKET` is not set, so that no notifications
/// are sent.
#[derive(Clone, Debug, Default)]
pub(crate) struct Notify {
    socket: Option<OsString>,
}

impl Notify {
    pub(crate) fn new(socket: Option<OsString>) -> Self {
        Self { socket }
    }

    /// Notifies systemd that the server accepts requests, so that units that depend on it start.
    pub(crate) fn ready(&self, status: &str) {
        self.send(&format!("READY=1\nSTATUS={status}"));
    }

    /// Notifies systemd that the server is stopping. systemd waits for the duration `within` before
    /// it kills the server.
    pub(crate) fn stopping(&self, within: Duration, status: &str) {
        let micros = within.as_micros();
        self.send(&format!(
            "STOPPING=1\nEXTEND_TIMEOUT_USEC={micros}\nSTATUS={status}"
        ));
    }

    fn send(&self, text: &str) {
        let Some(socket) = &self.socket else {
            return;
        };
        if let Err(error) = sys::notify::send(socket, text) {
            tracing::warn!(
                %error,
                socket = %socket.display(),
                "cannot notify the service manager (NOTIFY_SOCKET)"
            );
        }
    }
}
