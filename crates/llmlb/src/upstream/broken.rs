//! What can go wrong between us and a backend.

use std::io;

use crate::sys;

const REFUSED: &str = "connection refused";
const RESET: &str = "connection reset";

/// Why there is no answer, or no end of it.
#[derive(Debug)]
pub(crate) enum Broken {
    /// The backend cannot be reached. Nothing was sent.
    Unreachable(String),
    /// This machine has no more descriptors or ports. Nothing was sent.
    Shortage(String),
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
        if sys::limits::is_shortage(error) {
            Self::Shortage(in_words(error))
        } else {
            Self::Unreachable(in_words(error))
        }
    }

    /// A connection that ended.
    pub(super) fn cut(error: &io::Error) -> Self {
        Self::Cut(in_words(error))
    }

    /// Whether the machine is there, and nobody listens: what was begun before may still be going on.
    pub(crate) fn is_refusal(&self) -> bool {
        matches!(self, Self::Unreachable(why) if why == REFUSED || why == RESET)
    }

    /// Whether it is the client that did not do its part.
    pub(crate) fn is_clients(&self) -> bool {
        matches!(self, Self::Upload(_) | Self::Stalled(_))
    }

    pub(crate) fn why(&self) -> &str {
        match self {
            Self::Unreachable(why)
            | Self::Shortage(why)
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
        io::ErrorKind::ConnectionRefused => REFUSED.to_owned(),
        io::ErrorKind::ConnectionReset => RESET.to_owned(),
        io::ErrorKind::TimedOut => "timed out".to_owned(),
        _ => {
            let text = error.to_string();
            let words = text
                .split_once(" (os error")
                .map_or(&*text, |(words, _)| words);
            words.to_owned()
        }
    }
}
