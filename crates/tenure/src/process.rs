//! Process identities. A pid alone is not an identity, because the system reuses it.

use crate::record::valid_pid;
use crate::sys;

/// Identity of a process, distinct from every other process that has had or will have the same pid.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// Start time of the process, in the system's own unit (Linux: clock ticks since boot).
    pub(crate) start: u64,
    /// Id of the boot in which the process started.
    pub(crate) boot: Option<String>,
    /// PID namespace in which the pid is valid (Linux).
    pub(crate) pid_ns: Option<u64>,
}

impl Identity {
    /// Returns the identity of a running process. `None`: the process does not exist, or the system
    /// does not show it.
    ///
    /// ```
    /// use tenure::process::Identity;
    ///
    /// let this = Identity::from_pid(std::process::id()).expect("this process is running");
    /// assert!(this.is_running_as(std::process::id()));
    /// assert_eq!(Identity::from_pid(0), None);
    /// ```
    pub fn from_pid(pid: u32) -> Option<Self> {
        valid_pid(pid.into())?;
        sys::process::identity(pid)
    }

    /// True if the process that has this pid now is running and has this identity.
    pub fn is_running_as(&self, pid: u32) -> bool {
        Self::from_pid(pid).is_some_and(|now| now == *self)
    }
}

/// True if a process has this pid now. It may be another process than the one that a lock record
/// meant.
///
/// Processes of other users count. False for 0 and for numbers that no process can have.
///
/// ```
/// assert!(tenure::process::is_running(std::process::id()));
/// assert!(!tenure::process::is_running(0));
/// assert!(!tenure::process::is_running(u32::MAX));
/// ```
pub fn is_running(pid: u32) -> bool {
    valid_pid(pid.into()).is_some() && sys::process::is_running(pid)
}
