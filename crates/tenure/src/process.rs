//! Process identities. A pid alone is not an identity, because the system reuses it.

use std::fmt;
use std::str::FromStr;

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

    /// True if the process with this pid and identity is known to have ended. False if it is running,
    /// or if its pid cannot be checked from this process, because it belongs to another boot, another
    /// machine or another PID namespace.
    ///
    /// ```
    /// use tenure::process::Identity;
    ///
    /// let this = Identity::from_pid(std::process::id()).expect("this process is running");
    /// assert!(!this.has_ended(std::process::id()));
    /// let elsewhere: Identity = "1 another-boot 7".parse().expect("a valid identity");
    /// assert!(!elsewhere.has_ended(std::process::id()));
    /// ```
    pub fn has_ended(&self, pid: u32) -> bool {
        let Some(this) = Self::from_pid(std::process::id()) else {
            return false;
        };
        let is_checkable =
            self.boot.is_some() && self.boot == this.boot && self.pid_ns == this.pid_ns;
        is_checkable
            && match Self::from_pid(pid) {
                Some(now) => now != *self,
                // The identity of the process cannot be read. Either the process has ended, or the
                // system hides processes of other users, which must not count as ended.
                None => !is_running(pid),
            }
    }
}

/// `START BOOT PID_NAMESPACE`, with `-` for an unknown part. The text can be stored and parsed again.
///
/// ```
/// use tenure::process::Identity;
///
/// let this = Identity::from_pid(std::process::id()).expect("this process is running");
/// assert_eq!(this.to_string().parse(), Ok(this));
/// ```
impl fmt::Display for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} ", self.start, self.boot.as_deref().unwrap_or("-"))?;
        match self.pid_ns {
            Some(pid_ns) => write!(f, "{pid_ns}"),
            None => f.write_str("-"),
        }
    }
}

/// Error for a text that is not an [`Identity`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InvalidIdentity;

impl fmt::Display for InvalidIdentity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the text is not the identity of a process")
    }
}

impl std::error::Error for InvalidIdentity {}

impl FromStr for Identity {
    type Err = InvalidIdentity;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let mut parts = text.split(' ');
        let mut next = || parts.next().filter(|part| !part.is_empty());
        let (Some(start), Some(boot), Some(pid_ns), None) = (next(), next(), next(), next()) else {
            return Err(InvalidIdentity);
        };
        let number = |text: &str| text.parse().map_err(|_| InvalidIdentity);
        Ok(Self {
            start: number(start)?,
            boot: Some(boot).filter(|boot| *boot != "-").map(str::to_owned),
            pid_ns: match pid_ns {
                "-" => None,
                pid_ns => Some(number(pid_ns)?),
            },
        })
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn process_has_ended_only_if_its_boot_and_pid_namespace_are_known_here() {
        let pid = std::process::id();
        let this = Identity::from_pid(pid).unwrap();
        assert!(!this.has_ended(pid));
        // `earlier` has this process's pid and boot, but another start time: the pid was reused, so
        // the process that had it has ended.
        let earlier = Identity {
            start: this.start.wrapping_sub(1),
            ..this.clone()
        };
        assert_eq!(earlier.has_ended(pid), this.boot.is_some());
        assert_eq!(earlier.has_ended(0), this.boot.is_some());
        for boot in [None, Some("another".to_owned())] {
            let other = Identity {
                boot,
                ..earlier.clone()
            };
            assert!(!other.has_ended(pid) && !other.has_ended(0), "{other}");
        }
        let other = Identity {
            pid_ns: Some(7),
            ..earlier
        };
        assert!(!other.has_ended(pid) && !other.has_ended(0), "{other}");
    }

    #[test]
    fn identity_is_parsed_from_its_text_and_other_text_is_rejected() {
        for text in ["1 - -", "1 boot 2", "0 boot -"] {
            assert_eq!(text.parse::<Identity>().unwrap().to_string(), text);
        }
        for text in [
            "", "1", "1 b", "x b 1", "1 b x", "1 b 1 1", "1  1", "-1 b 1",
        ] {
            assert_eq!(text.parse::<Identity>(), Err(InvalidIdentity), "{text}");
        }
    }
}
