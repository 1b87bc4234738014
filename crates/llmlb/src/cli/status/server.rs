//! What was found out about the server of one port.

use std::path::PathBuf;
use std::time::{Duration, SystemTime};

use tenure::Proof;

use crate::cli::status_client::{Answer, Word};
use crate::lock::LockInfo;
use crate::sys::PortOwner;

#[derive(Clone, Debug)]
pub(super) struct Server {
    pub(super) port: u16,
    pub(super) lock_path: PathBuf,
    pub(super) state: State,
    /// Who uses the port, unless the server itself does.
    pub(super) port_in_use_by: Option<PortOwner>,
}

/// Whether a server runs.
#[derive(Clone, Debug)]
pub(super) enum State {
    Running(Box<Running>),
    NotRunning,
    /// A server crashed and left its file; what that says, if it says enough.
    Stale(Option<Box<LockInfo>>),
    /// Nobody holds the lock, and the file holds no record, for this reason.
    Unreadable(String),
    /// The file belongs to this user, and nobody is seen to hold it.
    OtherUser(String),
    /// The file, or its directory, belongs to this user, and the kernel does not show from here whether
    /// a server holds it, for this reason.
    Unknown {
        user: String,
        why: String,
    },
    /// What lies at the path is no lock file, for this reason.
    Unusable(String),
}

/// A server that holds the lock.
#[derive(Clone, Debug)]
pub(super) struct Running {
    pub(super) proof: Proof,
    /// Its process as seen from here, if it is proven.
    pub(super) pid: Option<u32>,
    /// What it wrote about itself, if that can be read.
    pub(super) info: Option<LockInfo>,
    pub(super) user: Option<String>,
    pub(super) suspended: bool,
    pub(super) file_gone: bool,
    pub(super) health: Health,
}

/// What came of asking it how it is.
#[derive(Clone, Debug)]
pub(super) enum Health {
    Answered(Answer),
    /// Somebody else answered.
    WrongProcess {
        pid: u32,
    },
    /// It accepts no more, and lets so many requests end: so its record says.
    Draining {
        in_flight: u64,
    },
    /// Nobody answered, for this reason.
    NoAnswer(String),
}

impl Server {
    pub(super) fn is_running(&self) -> bool {
        matches!(self.state, State::Running(_))
    }
}

impl Running {
    /// The server's own answer.
    pub(super) fn answer(&self) -> Option<&Answer> {
        match &self.health {
            Health::Answered(answer) => Some(answer),
            _ => None,
        }
    }

    /// How many requests it is serving.
    pub(super) fn in_flight(&self) -> Option<u64> {
        match self.health {
            Health::Draining { in_flight } => Some(in_flight),
            _ => self.answer()?.in_flight,
        }
    }

    pub(super) fn uptime(&self, now: SystemTime) -> Option<Duration> {
        // The server counts on a clock that nobody sets.
        let counted = self.answer().and_then(|answer| answer.uptime_ms);
        counted.map(Duration::from_millis).or_else(|| {
            let started_at = self.info.as_ref()?.started_at;
            Some(now.duration_since(started_at).unwrap_or_default())
        })
    }

    pub(super) fn version(&self) -> Option<&str> {
        let answered = self.answer().and_then(|answer| answer.version.as_deref());
        let recorded = self.info.as_ref().and_then(|info| info.version.as_deref());
        answered.or(recorded)
    }

    /// How many backends are up, of how many.
    pub(super) fn backends(&self) -> Option<(usize, usize)> {
        let backends = &self.answer()?.backends;
        let up = backends.iter().filter(|backend| backend.up).count();
        Some((up, backends.len()))
    }
}

impl Health {
    /// The answer, held against the process that took the lock. Both name it as it sees itself.
    pub(super) fn judge(asked: Result<Answer, String>, owner: Option<&LockInfo>) -> Self {
        match asked {
            Err(why) => match owner.and_then(|info| info.draining) {
                Some(in_flight) => Self::Draining { in_flight },
                None => Self::NoAnswer(why),
            },
            Ok(answer) if owner.is_some_and(|info| info.pid != answer.pid) => {
                Self::WrongProcess { pid: answer.pid }
            }
            Ok(answer) => Self::Answered(answer),
        }
    }

    /// One word for programs, documented in docs/status-json.md.
    pub(super) fn word(&self) -> &'static str {
        match self {
            Self::Answered(answer) => match answer.status {
                Word::Ok => "ok",
                Word::Draining => "draining",
            },
            Self::Draining { .. } => "draining",
            Self::WrongProcess { .. } => "wrong_process",
            Self::NoAnswer(_) => "no_answer",
        }
    }
}
