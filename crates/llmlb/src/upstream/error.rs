//! Errors of the connection between llmlb and a backend, classified by the reaction that they need.

use std::io;

use crate::sys;

#[derive(Debug)]
pub(crate) enum UpstreamError {
    /// No process listens at the backend's address, so it is down at once. Nothing was sent on the
    /// new connection, but requests on older connections to the backend may still be in progress.
    ConnectionRefused(String),
    /// The backend's host does not respond, so the backend is down. Nothing was sent to it.
    HostUnreachable(String),
    /// The connection to the backend failed for another reason, such as DNS or TLS. Nothing was
    /// sent to it.
    ConnectFailed(String),
    /// This machine has no more descriptors or memory for a connection. No backend is at fault, and
    /// nothing was sent.
    LocalExhausted(String),
    /// This machine has no free local port for the backend's address, or no route to it. Nothing
    /// was sent, and another address may be reached.
    NoLocalPort(String),
    /// The connection to the backend was closed or failed before the end of the response.
    Closed(String),
    /// Probes found the backend down while the request waited for its response. The request is sent
    /// to another backend.
    Hung(String),
    InvalidResponse(String),
    /// The response did not begin, or did not continue, within its time limit. The backend may
    /// still be working on the request.
    Timeout(String),
    /// The client did not send the whole body that it announced.
    ClientBody(String),
    /// The client sent its body too slowly.
    ClientBodyTimeout(String),
}

impl UpstreamError {
    /// Classifies the failure to open a connection to a backend.
    pub(super) fn from_connect(error: &io::Error) -> Self {
        let why = describe(error);
        match error.kind() {
            io::ErrorKind::AddrNotAvailable => Self::NoLocalPort(why),
            _ if sys::limits::is_shortage(error) => Self::LocalExhausted(why),
            io::ErrorKind::ConnectionRefused | io::ErrorKind::ConnectionReset => {
                Self::ConnectionRefused(why)
            }
            io::ErrorKind::TimedOut
            | io::ErrorKind::HostUnreachable
            | io::ErrorKind::NetworkUnreachable => Self::HostUnreachable(why),
            _ => Self::ConnectFailed(why),
        }
    }

    /// Returns the error of a connection to a backend that failed after it was opened.
    pub(super) fn closed(error: &io::Error) -> Self {
        Self::Closed(describe(error))
    }

    /// True if the client caused the error, so that it does not count against the backend.
    pub(crate) fn is_clients_fault(&self) -> bool {
        matches!(self, Self::ClientBody(_) | Self::ClientBodyTimeout(_))
    }

    /// True if the cause is a resource that this machine lacks. Such an error does not count
    /// towards the ejection of the backend.
    pub(crate) fn is_local_fault(&self) -> bool {
        matches!(self, Self::LocalExhausted(_) | Self::NoLocalPort(_))
    }

    pub(crate) fn why(&self) -> &str {
        match self {
            Self::ConnectionRefused(why)
            | Self::HostUnreachable(why)
            | Self::ConnectFailed(why)
            | Self::LocalExhausted(why)
            | Self::NoLocalPort(why)
            | Self::Closed(why)
            | Self::InvalidResponse(why)
            | Self::Hung(why)
            | Self::Timeout(why)
            | Self::ClientBody(why)
            | Self::ClientBodyTimeout(why) => why,
        }
    }
}

impl std::fmt::Display for UpstreamError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.why())
    }
}

impl std::error::Error for UpstreamError {}

/// Returns the text of an I/O error, which is the same on every operating system for the common
/// kinds.
fn describe(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::ConnectionRefused => "connection refused".to_owned(),
        io::ErrorKind::ConnectionReset => "connection reset".to_owned(),
        io::ErrorKind::TimedOut => "timed out".to_owned(),
        io::ErrorKind::AddrNotAvailable => {
            "no local port is free to connect to the backend's address".to_owned()
        }
        _ => {
            let text = error.to_string();
            let words = text
                .split_once(" (os error")
                .map_or(&*text, |(words, _)| words);
            words.to_owned()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connect_errors_are_classified_by_their_cause() {
        let kind = |kind: io::ErrorKind| UpstreamError::from_connect(&kind.into());
        for refused in [
            io::ErrorKind::ConnectionRefused,
            io::ErrorKind::ConnectionReset,
        ] {
            assert!(
                matches!(kind(refused), UpstreamError::ConnectionRefused(_)),
                "{refused}"
            );
        }
        for silent in [io::ErrorKind::TimedOut, io::ErrorKind::HostUnreachable] {
            assert!(
                matches!(kind(silent), UpstreamError::HostUnreachable(_)),
                "{silent}"
            );
        }
        let full = kind(io::ErrorKind::AddrNotAvailable);
        assert!(matches!(full, UpstreamError::NoLocalPort(_)) && full.is_local_fault());
        // Errors of DNS and TLS have these kinds. They must not be classified as an unreachable
        // host, which would mark the backend down.
        for other in [io::ErrorKind::Other, io::ErrorKind::InvalidData] {
            assert!(
                matches!(kind(other), UpstreamError::ConnectFailed(_)),
                "{other}"
            );
        }
    }
}
