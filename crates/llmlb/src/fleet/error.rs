//! Reasons why a run does not deliver from the data directory of a fleet.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

use crate::text;

/// Maximum number of characters of a name from another machine in an error message.
const MAX_NAME: usize = 100;

#[derive(Debug)]
pub(crate) enum FleetError {
    /// Another process has the lease and delivers. It delivers the records of this server as well,
    /// so this is no failure.
    Held(Holder),
    /// The mount option `option` makes file locks in the data directory invisible on other
    /// machines.
    LocalLocks {
        data: PathBuf,
        option: String,
        system: String,
    },
    /// Locks of files in the data directory are not visible on all hosts: one member of the fleet
    /// found the lock of another one free although it is held.
    LocksNotShared {
        marker: PathBuf,
        details: String,
    },
    /// The data directory belongs to a fleet with another lease store.
    OtherStore {
        file: PathBuf,
        stored: String,
        configured: String,
    },
    /// The data directory belongs to a fleet, and no lease store is configured.
    NoStore {
        file: PathBuf,
        stored: String,
    },
    /// The data directory is a copy of the directory of a fleet, with the id of the original.
    Copied {
        file: PathBuf,
    },
    /// The lease store cannot be used: it does not respond, or its URL is wrong.
    Store(tenure::Error),
    Disk {
        path: PathBuf,
        error: io::Error,
    },
}

/// Process that has the lease, as its lock record describes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Holder {
    pub(crate) host: Option<String>,
    pub(crate) pid: Option<u32>,
    pub(crate) instance: Option<String>,
}

impl FleetError {
    pub(super) fn disk(path: &Path, error: io::Error) -> Self {
        Self::Disk {
            path: path.to_owned(),
            error,
        }
    }

    /// Returns the hint of an error: the action that solves the problem, ending in something to
    /// type.
    pub(crate) fn hint(&self) -> Option<String> {
        match self {
            Self::Held(_) | Self::Disk { .. } => None,
            Self::LocalLocks { option, .. } => Some(format!(
                "mount the file system without `{option}`, or give each host a data directory of its \
                 own: usage.data_dir, or LLMLB_DATA_DIR=DIR"
            )),
            Self::LocksNotShared { marker, .. } => Some(format!(
                "use a file system with locks between hosts, or give each host a data directory of its \
                 own (usage.data_dir, LLMLB_DATA_DIR=DIR); then remove the marker: rm {}",
                marker.display()
            )),
            Self::OtherStore { file, .. } => Some(format!(
                "set fleet.store (LLMLB_FLEET_STORE) to the same store on all hosts; to change the \
                 store, stop llmlb on all hosts and remove the file: rm {}",
                file.display()
            )),
            Self::NoStore { file, stored } => Some(format!(
                "set fleet.store, or LLMLB_FLEET_STORE='{stored}'; if the fleet no longer exists, stop \
                 llmlb on all hosts and remove the file: rm {}",
                file.display()
            )),
            Self::Copied { file } => Some(format!(
                "if the original is still used, or no llmlb on another host uses this directory, remove \
                 the file, then the next run creates it with a new id; else stop llmlb on all hosts \
                 first: rm {}",
                file.display()
            )),
            Self::Store(error) if error.is_unreachable() => Some(
                "no record is lost: check that the lease store runs and that fleet.store names it; the \
                 next run retries"
                    .to_owned(),
            ),
            Self::Store(_) => Some("correct fleet.store (LLMLB_FLEET_STORE)".to_owned()),
        }
    }
}

impl From<tenure::Error> for FleetError {
    fn from(error: tenure::Error) -> Self {
        let Some(holder) = error.holder().filter(|_| error.is_held()) else {
            return Self::Store(error);
        };
        let record = holder.record();
        let safe = |name: &str| {
            let name = text::shortened(name, MAX_NAME);
            text::escaped(&name).into_owned()
        };
        Self::Held(Holder {
            host: record.and_then(|record| record.host()).map(safe),
            pid: record.map(tenure::Record::pid).filter(|pid| *pid > 0),
            instance: record
                .and_then(|record| record.field("instance")?.as_str())
                .map(safe),
        })
    }
}

impl fmt::Display for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.pid {
            Some(pid) => write!(f, "PID {pid}")?,
            None => f.write_str("a process")?,
        }
        let host = self.host.as_deref().unwrap_or("(unknown)");
        write!(f, " on host {host}")?;
        match &self.instance {
            Some(instance) => write!(f, " ({instance})"),
            None => Ok(()),
        }
    }
}

impl fmt::Display for FleetError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Held(holder) => write!(f, "{holder} is delivering from this data directory"),
            Self::LocalLocks {
                data,
                option,
                system,
            } => write!(
                f,
                "the locks in {} are not visible on other hosts: its file system ({system}) is mounted \
                 with `{option}`",
                data.display()
            ),
            Self::LocksNotShared { marker, details } => write!(
                f,
                "file locks in the data directory are not visible on other hosts: {details} ({})",
                marker.display()
            ),
            Self::OtherStore {
                file,
                stored,
                configured,
            } => write!(
                f,
                "the lease store of this data directory is {stored}, not {configured} ({})",
                file.display()
            ),
            Self::NoStore { file, stored } => write!(
                f,
                "this data directory is shared by a fleet whose lease store is {stored}, and fleet.store \
                 is not set ({})",
                file.display()
            ),
            Self::Copied { file } => write!(
                f,
                "this data directory is a copy of the data directory of a fleet, and still has the id of \
                 the original ({})",
                file.display()
            ),
            Self::Store(error) => error.fmt(f),
            Self::Disk { path, error } => write!(f, "cannot use {}: {error}", path.display()),
        }
    }
}
