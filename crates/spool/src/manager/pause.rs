//! A pause of all delivery: the destination asked for one, or takes nothing from us.

use std::io;
use std::time::{Duration, SystemTime};

use serde::{Deserialize, Serialize};

use super::state::wait_left;
use crate::book::{decode, encode};
use crate::data_dir::{DataDir, place, read_bounded};
use crate::disk::Disk;
use crate::error::Error;
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
    /// A person has to change something: the address, the token.
    pub is_misconfigured: bool,
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

pub(crate) const NAME: &str = ".pause.json";
/// Of how many destinations a pause is kept.
const MOST: usize = 16;

/// The pauses of all destinations.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct Pauses {
    version: u32,
    pauses: Vec<Pause>,
}

/// Those that are noted, the last one first.
pub(super) fn read(data: &DataDir) -> Result<Vec<Pause>, Error> {
    let path = data.spool.join(NAME);
    let read = match read_bounded(&*data.disk, &path) {
        Ok(bytes) => check(&bytes.unwrap_or_default()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => Err(error.to_string()),
    };
    match read {
        Ok(pauses) => Ok(pauses.pauses),
        Err(why) => {
            tracing::warn!(path = %path.display(), why, "not readable: there is no pause");
            Ok(Vec::new())
        }
    }
}

pub(crate) fn check(bytes: &[u8]) -> Result<Pauses, String> {
    let pauses: Pauses = decode(bytes)?;
    if pauses.version == VERSION {
        Ok(pauses)
    } else {
        Err(format!("its version is {}, not {VERSION}", pauses.version))
    }
}

/// Puts one in the place of that of its destination.
pub(super) fn set(disk: &dyn Disk, data: &DataDir, pause: &Pause) -> Result<(), Error> {
    let mut pauses = read(data)?;
    pauses.retain(|other| other.to != pause.to);
    pauses.insert(0, pause.clone());
    pauses.truncate(MOST);
    write(disk, data, pauses)
}

/// Ends that of a destination.
pub(super) fn end(disk: &dyn Disk, data: &DataDir, to: &str) -> Result<(), Error> {
    let mut pauses = read(data)?;
    let count = pauses.len();
    pauses.retain(|pause| pause.to != to);
    if pauses.len() == count {
        return Ok(());
    }
    write(disk, data, pauses)
}

fn write(disk: &dyn Disk, data: &DataDir, pauses: Vec<Pause>) -> Result<(), Error> {
    if pauses.is_empty() {
        let path = data.spool.join(NAME);
        disk.remove(&path)
            .map_err(|error| Error::new("delete", &path, error))?;
    } else {
        let version = VERSION;
        let pauses = Pauses { version, pauses };
        place(disk, &data.spool, NAME, &encode(&pauses))?;
    }
    disk.sync_dir(&data.spool)
        .map_err(|error| Error::new("sync", &data.spool, error))
}
