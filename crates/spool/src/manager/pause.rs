//! A pause of all delivery: the destination asked for one, or takes nothing from us.

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

/// Until when nothing is sent, and why. It outlives the process.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pause {
    /// The destination it is about; another one may be sent to.
    pub to: String,
    pub(crate) since: Moment,
    /// In milliseconds.
    pub(crate) waits_for: u64,
    /// For people: what the destination said.
    pub why: String,
    /// The destination accepts nothing: the address, the token or the destination itself is likely
    /// wrong. Delivery is tried again when the pause is over.
    pub is_misconfigured: bool,
    /// In that case: the destination has read batches, and has rejected every part of them. Records,
    /// their format or their size may be at fault, and not the address or the token.
    #[serde(default)]
    pub is_rejecting: bool,
}

impl Pause {
    pub(crate) fn new(
        to: &str,
        since: Moment,
        long: Duration,
        why: &str,
        is_misconfigured: bool,
    ) -> Self {
        Self {
            to: to.to_owned(),
            since,
            waits_for: u64::try_from(long.as_millis()).unwrap_or(u64::MAX),
            why: why.to_owned(),
            is_misconfigured,
            is_rejecting: false,
        }
    }

    /// When sending goes on, if the clock is right.
    pub fn until(&self) -> SystemTime {
        let long = Duration::from_millis(self.waits_for);
        self.since.after(long).into()
    }

    /// How long it still is. Never longer than it was told to, whatever the clock does.
    pub(crate) fn left(&self, now: Moment) -> Duration {
        wait_left(Some(self.since), self.waits_for, now)
    }
}

/// Last verdict of a destination on a batch that it could read. The verdict outlives the process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Standing {
    /// It has neither accepted nor rejected a batch yet.
    #[default]
    Unknown,
    /// It has accepted a batch since it last rejected one.
    Accepts,
    /// It has rejected a batch since it last accepted one.
    Rejects {
        /// Batches since then that were bisected without any part being accepted.
        probes: u32,
    },
}

pub(crate) const NAME: &str = ".pause.json";
/// Of how many destinations a pause, or the standing, is kept.
const MOST: usize = 16;

/// The pauses and the standings of all destinations.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct PauseFile {
    version: u32,
    pub(super) pauses: Vec<Pause>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    standings: Vec<StoredStanding>,
}

/// A standing as it is written.
#[derive(Debug, Serialize, Deserialize)]
struct StoredStanding {
    to: String,
    accepts: bool,
    probes: u32,
}

impl PauseFile {
    pub(super) fn standing(&self, to: &str) -> Standing {
        match self.standings.iter().find(|noted| noted.to == to) {
            None => Standing::Unknown,
            Some(StoredStanding { accepts: true, .. }) => Standing::Accepts,
            Some(StoredStanding { probes, .. }) => Standing::Rejects { probes: *probes },
        }
    }
}

/// Those that are noted, the last one first.
pub(super) fn read(data: &DataDir) -> Result<PauseFile, Error> {
    let path = data.spool.join(NAME);
    let read = match read_bounded(&*data.disk, &path) {
        Ok(bytes) => match decode_version(&path, &bytes.unwrap_or_default(), VERSION) {
            // A newer version wrote it, and knows why nothing is sent.
            Err(error) if error.is_version() => return Err(error),
            noted => noted.map_err(|error| error.io_error().to_string()),
        },
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(PauseFile::default()),
        Err(error) => Err(error.to_string()),
    };
    match read {
        Ok(pauses) => Ok(pauses),
        Err(why) => {
            tracing::warn!(path = %path.display(), why, "not readable: there is no pause");
            Ok(PauseFile::default())
        }
    }
}

pub(crate) fn check(bytes: &[u8]) -> Result<PauseFile, String> {
    let noted: PauseFile = decode(bytes)?;
    if noted.version == VERSION {
        Ok(noted)
    } else {
        Err(format!("its version is {}, not {VERSION}", noted.version))
    }
}

/// Puts one in the place of that of its destination.
pub(super) fn set(disk: &dyn Disk, data: &DataDir, pause: &Pause) -> Result<(), Error> {
    let mut noted = read(data)?;
    noted.pauses.retain(|other| other.to != pause.to);
    noted.pauses.insert(0, pause.clone());
    noted.pauses.truncate(MOST);
    write(disk, data, noted)
}

/// Ends that of a destination.
pub(super) fn end(disk: &dyn Disk, data: &DataDir, to: &str) -> Result<(), Error> {
    let mut noted = read(data)?;
    let count = noted.pauses.len();
    noted.pauses.retain(|pause| pause.to != to);
    if noted.pauses.len() == count {
        return Ok(());
    }
    write(disk, data, noted)
}

/// Notes the standing of a destination.
pub(super) fn set_standing(
    disk: &dyn Disk,
    data: &DataDir,
    to: &str,
    standing: Standing,
) -> Result<(), Error> {
    let mut noted = read(data)?;
    noted.standings.retain(|other| other.to != to);
    let (accepts, probes) = match standing {
        Standing::Unknown => return write(disk, data, noted),
        Standing::Accepts => (true, 0),
        Standing::Rejects { probes } => (false, probes),
    };
    let to = to.to_owned();
    let one = StoredStanding {
        to,
        accepts,
        probes,
    };
    noted.standings.insert(0, one);
    noted.standings.truncate(MOST);
    write(disk, data, noted)
}

fn write(disk: &dyn Disk, data: &DataDir, mut noted: PauseFile) -> Result<(), Error> {
    let path = data.spool.join(NAME);
    let found = path.symlink_metadata();
    if found.is_ok_and(|found| !found.is_file()) {
        let why = io::Error::other("it is not a file");
        return Err(Error::new("replace", &path, why));
    }
    if noted.pauses.is_empty() && noted.standings.is_empty() {
        files::remove(disk, &path).map_err(|error| Error::new("delete", &path, error))?;
    } else {
        noted.version = VERSION;
        write_atomically(disk, &data.spool, NAME, &encode(&noted))?;
    }
    disk.sync_dir(&data.spool)
        .map_err(|error| Error::new("sync", &data.spool, error))
}
