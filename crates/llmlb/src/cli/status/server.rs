//! Result of inspecting the server of one port, for `llmlb status`.

use std::path::PathBuf;
use std::time::{Duration, SystemTime};

use tenure::Proof;

use crate::cli::status_client::{ServerStatus, StatusResponse};
use crate::lock::LockInfo;
use crate::sys::PortOwner;

/// The server of one port, as its lock file and its `/status` show it.
#[derive(Clone, Debug)]
pub(super) struct ServerReport {
    pub(super) port: u16,
    pub(super) lock_path: PathBuf,
    pub(super) state: ServerState,
    /// Process that uses the port and is not the server that holds the lock.
    pub(super) port_in_use_by: Option<PortOwner>,
}

/// State of a port's lock file.
#[derive(Clone, Debug)]
pub(super) enum ServerState {
    Running(Box<RunningServer>),
    NotRunning,
    /// A crashed server left its lock file, with a lock record unless that is incomplete.
    Stale(Option<Box<LockInfo>>),
    /// No process holds the lock, and the lock file has no valid lock record, for this reason.
    Unreadable(String),
    /// The lock file belongs to this other user, and no process is seen to hold its lock.
    OtherUser(String),
    /// It is unknown whether a server holds the lock: the file or its directory belongs to another
    /// user, `user`, and `why` says what hides the state of the lock, such as a PID namespace or a
    /// directory that may not be searched.
    Unknown {
        user: String,
        why: String,
    },
    /// The path of the lock file is, for this reason, not a lock file.
    Unusable(String),
}

/// A server that holds the lock of its port.
#[derive(Clone, Debug)]
pub(super) struct RunningServer {
    pub(super) proof: Proof,
    /// Process id of the server in our PID namespace, if the kernel confirms that this process
    /// holds the lock.
    pub(super) pid: Option<u32>,
    /// Lock record of the server, if it is readable.
    pub(super) info: Option<LockInfo>,
    pub(super) user: Option<String>,
    pub(super) suspended: bool,
    pub(super) file_gone: bool,
    pub(super) health: Health,
}

/// Result of requesting `/status` from a server.
#[derive(Clone, Debug)]
pub(super) enum Health {
    Responded(Box<StatusResponse>),
    /// A process other than the lock's holder responded on the server's address, so the response is
    /// not shown as the server's.
    WrongProcess {
        pid: u32,
    },
    /// The server did not respond, but its lock record shows that it drains, with this many
    /// requests.
    Draining {
        in_flight: u64,
    },
    /// The server did not respond to `/status`, for this reason.
    NoResponse(String),
}

impl ServerReport {
    pub(super) fn is_running(&self) -> bool {
        matches!(self.state, ServerState::Running(_))
    }
}

impl RunningServer {
    /// Returns the server's response to `/status`, if there was one.
    pub(super) fn response(&self) -> Option<&StatusResponse> {
        match &self.health {
            Health::Responded(response) => Some(response),
            _ => None,
        }
    }

    /// Returns the number of requests in flight at the server, from the server's response to
    /// `/status`. For a draining server that does not respond, the number comes from its lock
    /// record.
    pub(super) fn in_flight(&self) -> Option<u64> {
        match self.health {
            Health::Draining { in_flight } => Some(in_flight),
            _ => self.response()?.in_flight,
        }
    }

    pub(super) fn uptime(&self, now: SystemTime) -> Option<Duration> {
        // Prefer the uptime that the server reports: the server's monotonic clock is immune to
        // changes of the system time.
        let counted = self.response().and_then(|response| response.uptime_ms);
        counted.map(Duration::from_millis).or_else(|| {
            let started_at = self.info.as_ref()?.started_at;
            Some(now.duration_since(started_at).unwrap_or_default())
        })
    }

    pub(super) fn version(&self) -> Option<&str> {
        let reported = self
            .response()
            .and_then(|response| response.version.as_deref());
        let recorded = self.info.as_ref().and_then(|info| info.version.as_deref());
        reported.or(recorded)
    }

    /// Returns the number of backends that are up, and the number of all backends.
    pub(super) fn backends(&self) -> Option<(usize, usize)> {
        let backends = &self.response()?.backends;
        let up = backends.iter().filter(|backend| backend.up).count();
        Some((up, backends.len()))
    }
}

impl Health {
    /// Compares a response with the lock record, so that the response of another process is
    /// detected. Both contain the pid in the server's own namespace, so they match for a server in
    /// a container too.
    pub(super) fn classify(
        response: Result<StatusResponse, String>,
        owner: Option<&LockInfo>,
    ) -> Self {
        match response {
            Err(why) => match owner.and_then(|info| info.draining) {
                Some(in_flight) => Self::Draining { in_flight },
                None => Self::NoResponse(why),
            },
            Ok(response) if owner.is_some_and(|info| info.pid != response.pid) => {
                Self::WrongProcess { pid: response.pid }
            }
            Ok(response) => Self::Responded(Box::new(response)),
        }
    }

    /// Returns the value of the field `health` in the JSON output: docs/status-json.md.
    pub(super) fn word(&self) -> &'static str {
        match self {
            Self::Responded(response) => match response.status {
                ServerStatus::Ok => "ok",
                ServerStatus::Draining => "draining",
            },
            Self::Draining { .. } => "draining",
            Self::WrongProcess { .. } => "wrong_process",
            Self::NoResponse(_) => "no_answer",
        }
    }
}
