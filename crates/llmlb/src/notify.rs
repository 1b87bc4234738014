//! Telling systemd how the start and the end are going, when it asks (`Type=notify`).

use std::ffi::OsString;
use std::time::Duration;

use crate::sys;

/// Where to tell it; nowhere, if nobody asked.
#[derive(Clone, Debug, Default)]
pub(crate) struct Notify {
    socket: Option<OsString>,
}

impl Notify {
    pub(crate) fn new(socket: Option<OsString>) -> Self {
        Self { socket }
    }

    /// The server answers requests.
    pub(crate) fn ready(&self, status: &str) {
        self.send(&format!("READY=1\nSTATUS={status}"));
    }

    /// The server ends, within this time.
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
            tracing::warn!(%error, socket = %socket.display(), "cannot notify the service manager");
        }
    }
}
