//! What can go wrong between us and a backend.

use std::io;

use crate::sys;

/// Why there is no answer, or no end of it.
#[derive(Debug)]
pub(crate) enum Broken {
    /// Nobody listens at the backend's address. Nothing was sent; what was begun before may still be
    /// going on.
    Refused(String),
    /// Nothing answers at its address: its machine may be gone. Nothing was sent.
    Gone(String),
    /// It cannot be reached for another reason, such as its name. Nothing was sent.
    Unreachable(String),
    /// This machine has no more descriptors or memory. Nothing was sent.
    Shortage(String),
    /// This machine has no local port left for the backend's address, or none that can reach it.
    /// Nothing was sent.
    NoPort(String),
    /// The backend ended the connection.
    Cut(String),
    /// It was found to be down while its answer was waited for.
    Hung(String),
    /// What it says is not HTTP.
    Garbage(String),
    /// It took too long.
    Slow(String),
    /// The client did not send what it had announced.
    Upload(String),
    /// The client stopped sending.
    Stalled(String),
}

impl Broken {
    /// A connection that could not be made.
    pub(super) fn connecting(error: &io::Error) -> Self {
        let why = in_words(error);
        match error.kind() {
            io::ErrorKind::AddrNotAvailable => Self::NoPort(why),
            _ if sys::limits::is_shortage(error) => Self::Shortage(why),
            io::ErrorKind::ConnectionRefused | io::ErrorKind::ConnectionReset => Self::Refused(why),
            io::ErrorKind::TimedOut
            | io::ErrorKind::HostUnreachable
            | io::ErrorKind::NetworkUnreachable => Self::Gone(why),
            _ => Self::Unreachable(why),
        }
    }

    /// A connection that ended.
    pub(super) fn cut(error: &io::Error) -> Self {
        Self::Cut(in_words(error))
    }

    /// Whether it is the client that did not do its part.
    pub(crate) fn is_clients(&self) -> bool {
        matches!(self, Self::Upload(_) | Self::Stalled(_))
    }

    /// True if this machine lacks something: it is no failure of the backend.
    pub(crate) fn is_ours(&self) -> bool {
        matches!(self, Self::Shortage(_) | Self::NoPort(_))
    }

    pub(crate) fn why(&self) -> &str {
        match self {
            Self::Refused(why)
            | Self::Gone(why)
            | Self::Unreachable(why)
            | Self::Shortage(why)
            | Self::NoPort(why)
            | Self::Cut(why)
            | Self::Garbage(why)
            | Self::Hung(why)
            | Self::Slow(why)
            | Self::Upload(why)
            | Self::Stalled(why) => why,
        }
    }
}

impl std::fmt::Display for Broken {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.why())
    }
}

impl std::error::Error for Broken {}

/// Every system has words of its own for these.
fn in_words(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::ConnectionRefused => "connection refused".to_owned(),
        io::ErrorKind::ConnectionReset => "connection reset".to_owned(),
        io::ErrorKind::TimedOut => "timed out".to_owned(),
        io::ErrorKind::AddrNotAvailable => "no local port is free for its address".to_owned(),
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
    fn what_is_gone_is_told_from_what_is_only_not_reached() {
        let kind = |kind: io::ErrorKind| Broken::connecting(&kind.into());
        for refused in [
            io::ErrorKind::ConnectionRefused,
            io::ErrorKind::ConnectionReset,
        ] {
            assert!(matches!(kind(refused), Broken::Refused(_)), "{refused}");
        }
        for silent in [io::ErrorKind::TimedOut, io::ErrorKind::HostUnreachable] {
            assert!(matches!(kind(silent), Broken::Gone(_)), "{silent}");
        }
        let full = kind(io::ErrorKind::AddrNotAvailable);
        assert!(matches!(full, Broken::NoPort(_)) && full.is_ours());
        // Such as a name server that fails, or a certificate.
        for other in [io::ErrorKind::Other, io::ErrorKind::InvalidData] {
            assert!(matches!(kind(other), Broken::Unreachable(_)), "{other}");
        }
    }
}
