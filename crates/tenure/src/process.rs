//! Which process is which: a number alone is not an identity, since the system uses it again.

use crate::record::possible_pid;
use crate::sys;

/// What tells one process from every other that ever had, or will have, the same id.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// When the process started, in the system's own unit (Linux: clock ticks since boot).
    pub(crate) start: u64,
    /// Which boot of the machine that was.
    pub(crate) boot: Option<String>,
    /// The PID namespace in which the id has its meaning (Linux).
    pub(crate) pid_ns: Option<u64>,
}

impl Identity {
    /// The identity of a running process, or `None` if there is no such process or this system
    /// does not let us see it.
    ///
    /// ```
    /// use tenure::process::Identity;
    ///
    /// let me = Identity::of(std::process::id()).expect("this process runs");
    /// assert!(me.is_running_as(std::process::id()));
    /// assert_eq!(Identity::of(0), None);
    /// ```
    pub fn of(pid: u32) -> Option<Self> {
        possible_pid(pid.into())?;
        sys::process::identity(pid)
    }

    /// Whether the process that now has this id is alive and the same one.
    pub fn is_running_as(&self, pid: u32) -> bool {
        Self::of(pid).is_some_and(|now| now == *self)
    }
}

/// Whether some process has this id now. It need not be the one that somebody recorded.
///
/// A process that belongs to another user counts; 0 and ids that no process can have do not.
///
/// ```
/// assert!(tenure::process::is_running(std::process::id()));
/// assert!(!tenure::process::is_running(0));
/// assert!(!tenure::process::is_running(u32::MAX));
/// ```
pub fn is_running(pid: u32) -> bool {
    possible_pid(pid.into()).is_some() && sys::process::is_running(pid)
}
