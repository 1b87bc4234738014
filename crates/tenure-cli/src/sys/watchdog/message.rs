//! Messages between the wrapper and its watchdog, 16 bytes each, over a pair of stream sockets.
//!
//! Encoding and sending allocate nothing, because a signal handler sends messages too.

use std::io::{self, ErrorKind, Read};
use std::os::fd::RawFd;
use std::os::unix::net::UnixStream;
use std::time::Duration;

const LENGTH: usize = 16;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Order {
    /// The lease is valid until this time of the boot clock.
    Deadline(Duration),
    /// A signal for the command. `by_terminal`: the terminal has sent it to the process group of the
    /// wrapper.
    Signal {
        number: libc::c_int,
        by_terminal: bool,
    },
    /// The lease is lost: the command and its descendants are killed at once.
    Kill,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Report {
    /// The command runs with this pid.
    Started(u32),
    /// The command could not be started. The value is the error number (`errno`).
    NotStarted(i32),
    /// The lease was not renewed in time, and SIGTERM was sent to the command and its descendants.
    Expiring,
    /// The command has exited: its exit code, or 128 and the number of the signal. `by_watchdog`:
    /// the watchdog ended it because the lease was not renewed in time.
    Exited { code: i32, by_watchdog: bool },
    /// All descendants of the watchdog have ended, except for this number of processes that it may
    /// not signal.
    Ended { survivors: u32 },
}

impl Order {
    pub(crate) fn encode(self) -> [u8; LENGTH] {
        match self {
            Self::Deadline(at) => pack(1, 0, u64::try_from(at.as_nanos()).unwrap_or(u64::MAX)),
            Self::Signal {
                number,
                by_terminal,
            } => pack(2, u32::from(by_terminal), u64::from(number.unsigned_abs())),
            Self::Kill => pack(3, 0, 0),
        }
    }

    pub(super) fn decode(bytes: [u8; LENGTH]) -> Option<Self> {
        let (kind, flag, value) = unpack(bytes);
        Some(match kind {
            1 => Self::Deadline(Duration::from_nanos(value)),
            2 => Self::Signal {
                number: value.try_into().ok()?,
                by_terminal: flag != 0,
            },
            3 => Self::Kill,
            _ => return None,
        })
    }
}

impl Report {
    pub(super) fn encode(self) -> [u8; LENGTH] {
        let number = |value: i32| u64::from(value.unsigned_abs());
        match self {
            Self::Started(pid) => pack(1, 0, pid.into()),
            Self::NotStarted(errno) => pack(2, 0, number(errno)),
            Self::Expiring => pack(3, 0, 0),
            Self::Exited { code, by_watchdog } => pack(4, u32::from(by_watchdog), number(code)),
            Self::Ended { survivors } => pack(5, 0, survivors.into()),
        }
    }

    pub(super) fn decode(bytes: [u8; LENGTH]) -> Option<Self> {
        let (kind, flag, value) = unpack(bytes);
        Some(match kind {
            1 => Self::Started(value.try_into().ok()?),
            2 => Self::NotStarted(value.try_into().ok()?),
            3 => Self::Expiring,
            4 => Self::Exited {
                code: value.try_into().ok()?,
                by_watchdog: flag != 0,
            },
            5 => Self::Ended {
                survivors: value.try_into().ok()?,
            },
            _ => return None,
        })
    }
}

/// Sends a message without blocking, and without SIGPIPE, which both processes ignore. Returns false
/// if the other process has ended or does not read. May be called in a signal handler.
pub(crate) fn send(socket: RawFd, message: [u8; LENGTH]) -> bool {
    // SAFETY: the buffer is valid for its length.
    let sent = unsafe { libc::send(socket, message.as_ptr().cast(), LENGTH, libc::MSG_DONTWAIT) };
    usize::try_from(sent) == Ok(LENGTH)
}

/// Received bytes that do not make up a whole message yet.
#[derive(Debug, Default)]
pub(super) struct Inbox {
    partial: [u8; LENGTH],
    filled: usize,
}

impl Inbox {
    /// Returns the next message, or `None` after the other process has closed its socket. Fails with
    /// [`ErrorKind::WouldBlock`] if the socket does not block and no whole message has arrived.
    pub(super) fn next(&mut self, mut socket: &UnixStream) -> io::Result<Option<[u8; LENGTH]>> {
        while self.filled < LENGTH {
            match socket.read(&mut self.partial[self.filled..]) {
                Ok(0) => return Ok(None),
                Ok(count) => self.filled += count,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                // The connection is reset if the other process ended without reading all messages.
                // That counts as closed.
                Err(error) if error.kind() == ErrorKind::ConnectionReset => return Ok(None),
                Err(error) => return Err(error),
            }
        }
        self.filled = 0;
        Ok(Some(self.partial))
    }
}

fn pack(kind: u32, flag: u32, value: u64) -> [u8; LENGTH] {
    (u128::from(kind) << 96 | u128::from(flag) << 64 | u128::from(value)).to_be_bytes()
}

fn unpack(bytes: [u8; LENGTH]) -> (u32, u32, u64) {
    let bits = u128::from_be_bytes(bytes);
    (
        u32::try_from(bits >> 96).unwrap_or(0),
        u32::try_from((bits >> 64) & u128::from(u32::MAX)).unwrap_or(0),
        u64::try_from(bits & u128::from(u64::MAX)).unwrap_or(0),
    )
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsRawFd;

    use super::*;

    #[test]
    fn messages_arrive_as_they_were_sent_also_in_parts() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        theirs.set_nonblocking(true).unwrap();
        let mut inbox = Inbox::default();
        let orders = [
            Order::Deadline(Duration::from_nanos(12_345_678_901)),
            Order::Signal {
                number: 64,
                by_terminal: true,
            },
            Order::Kill,
        ];
        for order in orders {
            assert!(send(ours.as_raw_fd(), order.encode()));
        }
        for order in orders {
            let bytes = inbox.next(&theirs).unwrap().unwrap();
            assert_eq!(Order::decode(bytes), Some(order));
        }
        let bytes = Order::Kill.encode();
        io::Write::write_all(&mut &ours, &bytes[..5]).unwrap();
        let pending = inbox.next(&theirs).unwrap_err();
        assert_eq!(pending.kind(), ErrorKind::WouldBlock);
        io::Write::write_all(&mut &ours, &bytes[5..]).unwrap();
        assert_eq!(inbox.next(&theirs).unwrap(), Some(bytes));
        drop(ours);
        assert_eq!(inbox.next(&theirs).unwrap(), None);
        assert!(!send(theirs.as_raw_fd(), bytes));
    }

    #[test]
    fn reports_survive_encoding() {
        for report in [
            Report::Started(4_000_000),
            Report::NotStarted(2),
            Report::Expiring,
            Report::Exited {
                code: 255,
                by_watchdog: true,
            },
            Report::Ended { survivors: 3 },
        ] {
            assert_eq!(Report::decode(report.encode()), Some(report));
        }
        assert_eq!(Report::decode([0; LENGTH]), None);
    }
}
