//! Pauses of all delivery to a destination, which asked for a pause or accepts no batch.

use std::io;
use std::time::{Duration, SystemTime};

use serde::{Deserialize, Serialize};

use super::state::wait_left;
use crate::data_dir::DataDir;
use crate::disk::Disk;
use crate::error::Error;
use crate::files::{self, read_bounded, write_atomically};
use crate::journal::{decode, decode_version, encode};
use crate::time::Moment;

const VERSION: u32 = 1;

/// Pause of all delivery to a destination. It is stored and survives restarts.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pause {
    /// Destination that is paused. Other destinations are not affected.
    pub to: String,
    /// Start of the pause.
    pub(crate) since: Moment,
    /// Duration of the pause in milliseconds.
    pub(crate) waits_for: u64,
    /// Cause of the pause for people: the response of the destination.
    pub why: String,
    /// True if the destination accepts no batch: the address, the token or the destination itself
    /// is likely wrong. Delivery is retried after the pause.
    pub is_misconfigured: bool,
    /// True if `is_misconfigured` and the destination has rejected every part of a batch. Records,
    /// their format or their size may be at fault, not the address or the token.
    #[serde(default)]
    pub is_rejecting: bool,
}

impl Pause {
    /// Creates a pause that the destination asked for.
    pub(crate) fn new(to: &str, since: Moment, duration: Duration, why: &str) -> Self {
        Self {
            to: to.to_owned(),
            since,
            waits_for: u64::try_from(duration.as_millis()).unwrap_or(u64::MAX),
            why: why.to_owned(),
            is_misconfigured: false,
            is_rejecting: false,
        }
    }

    /// Returns the end of the pause by the clock of this machine.
    pub fn until(&self) -> SystemTime {
        let duration = Duration::from_millis(self.waits_for);
        self.since.after(duration).into()
    }

    /// Returns the rest of the pause. It never exceeds the stored duration, also if the clock goes
    /// back.
    pub(crate) fn left(&self, now: Moment) -> Duration {
        wait_left(Some(self.since), self.waits_for, now)
    }
}

/// Last verdict of a destination: it accepted or rejected a batch. After a rejection, the verdict
/// decides if the batch is split, or bisected to test the destination. The verdict is stored and
/// survives restarts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Standing {
    /// The destination has neither accepted nor rejected a batch yet.
    #[default]
    Unknown,
    /// The destination has accepted a batch since it last rejected one.
    Accepts,
    /// The destination has rejected a batch since it last accepted one.
    Rejects {
        /// Number of batches that were tried since the destination last accepted a batch, and of
        /// which it accepted no part. Each of these batches doubles the next pause, up to a
        /// maximum.
        probes: u32,
    },
}

pub(crate) const NAME: &str = ".pause.json";
/// Maximum number of destinations whose pause or last verdict is stored. The oldest are dropped, so
/// that the file stays small.
const MAX_DESTINATIONS: usize = 16;

/// Content of the pause file: the pauses of destinations, and for each destination its last verdict
/// (it accepted or rejected a batch). Both lists begin with the most recent change.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct PauseFile {
    version: u32,
    pub(super) pauses: Vec<Pause>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    standings: Vec<StoredStanding>,
}

/// Last verdict of a destination in the pause file: it accepted or rejected a batch.
#[derive(Debug, Serialize, Deserialize)]
struct StoredStanding {
    to: String,
    accepts: bool,
    probes: u32,
}

impl PauseFile {
    pub(super) fn standing(&self, to: &str) -> Standing {
        match self.standings.iter().find(|stored| stored.to == to) {
            None => Standing::Unknown,
            Some(StoredStanding { accepts: true, .. }) => Standing::Accepts,
            Some(StoredStanding { probes, .. }) => Standing::Rejects { probes: *probes },
        }
    }
}

/// Reads the pause file. A damaged file counts as empty: delivery is retried too early at worst.
pub(super) fn read(data: &DataDir) -> Result<PauseFile, Error> {
    let path = data.spool.join(NAME);
    let read = match read_bounded(&*data.disk, &path) {
        Ok(bytes) => match decode_version(&path, &bytes.unwrap_or_default(), VERSION) {
            // A newer version wrote the file, and may have paused delivery in a way that this
            // version does not know. The error keeps this version from ignoring the pause.
            Err(error) if error.is_version() => return Err(error),
            decoded => decoded.map_err(|error| error.io_error().to_string()),
        },
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(PauseFile::default()),
        Err(error) => Err(error.to_string()),
    };
    match read {
        Ok(file) => Ok(file),
        Err(why) => {
            tracing::warn!(path = %path.display(), why, "pause file cannot be read: delivery continues without the pauses in it");
            Ok(PauseFile::default())
        }
    }
}

pub(crate) fn check(bytes: &[u8]) -> Result<PauseFile, String> {
    let file: PauseFile = decode(bytes)?;
    if file.version == VERSION {
        Ok(file)
    } else {
        Err(format!(
            "the file has version {}, not {VERSION}",
            file.version
        ))
    }
}

/// Stores a pause. It replaces the earlier pause of the same destination.
pub(super) fn set(disk: &dyn Disk, data: &DataDir, pause: &Pause) -> Result<(), Error> {
    let mut file = read(data)?;
    file.pauses.retain(|other| other.to != pause.to);
    file.pauses.insert(0, pause.clone());
    file.pauses.truncate(MAX_DESTINATIONS);
    write(disk, data, file)
}

pub(super) fn end(disk: &dyn Disk, data: &DataDir, to: &str) -> Result<(), Error> {
    let mut file = read(data)?;
    let count = file.pauses.len();
    file.pauses.retain(|pause| pause.to != to);
    if file.pauses.len() == count {
        return Ok(());
    }
    write(disk, data, file)
}

/// Stores whether a destination last accepted or rejected a batch, so that this is known after a
/// restart.
pub(super) fn set_standing(
    disk: &dyn Disk,
    data: &DataDir,
    to: &str,
    standing: Standing,
) -> Result<(), Error> {
    let mut file = read(data)?;
    file.standings.retain(|other| other.to != to);
    let (accepts, probes) = match standing {
        Standing::Unknown => return write(disk, data, file),
        Standing::Accepts => (true, 0),
        Standing::Rejects { probes } => (false, probes),
    };
    let stored = StoredStanding {
        to: to.to_owned(),
        accepts,
        probes,
    };
    file.standings.insert(0, stored);
    file.standings.truncate(MAX_DESTINATIONS);
    write(disk, data, file)
}

fn write(disk: &dyn Disk, data: &DataDir, mut file: PauseFile) -> Result<(), Error> {
    let path = data.spool.join(NAME);
    let found = path.symlink_metadata();
    if found.is_ok_and(|found| !found.is_file()) {
        let why = io::Error::other("the pause file is not a regular file");
        return Err(Error::new("replace", &path, why));
    }
    if file.pauses.is_empty() && file.standings.is_empty() {
        files::remove(disk, &path).map_err(|error| Error::new("delete", &path, error))?;
    } else {
        file.version = VERSION;
        write_atomically(disk, &data.spool, NAME, &encode(&file))?;
    }
    disk.sync_dir(&data.spool)
        .map_err(|error| Error::new("sync", &data.spool, error))
}
