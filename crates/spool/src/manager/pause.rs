//! A pause of all delivery: the destination asked for one, or takes nothing from us.

use std::io;
use std::path::PathBuf;
use std::time::{Duration, SystemTime};

use serde::{Deserialize, Serialize};

use super::state::wait_left;
use crate::book::{decode, encode};
use crate::data_dir::{DataDir, place};
use crate::disk::Disk;
use crate::error::Error;
use crate::time::Moment;

const VERSION: u32 = 1;

/// Until when nothing is sent, and why. It outlives the process.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pause {
    version: u32,
    /// The destination it is about; another one may be sent to.
    pub(crate) to: String,
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
            version: VERSION,
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

fn path(data: &DataDir) -> PathBuf {
    data.spool.join(NAME)
}

pub(crate) const NAME: &str = ".pause.json";

pub(super) fn read(data: &DataDir) -> Result<Option<Pause>, Error> {
    let path = path(data);
    let bytes = match std::fs::read(&path) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(Error::new("read", &path, error)),
    };
    match check(&bytes) {
        Ok(pause) => Ok(Some(pause)),
        Err(why) => {
            tracing::warn!(path = %path.display(), why, "not readable: there is no pause");
            Ok(None)
        }
    }
}

pub(crate) fn check(bytes: &[u8]) -> Result<Pause, String> {
    let pause: Pause = decode(bytes)?;
    if pause.version == VERSION {
        Ok(pause)
    } else {
        Err(format!("its version is {}, not {VERSION}", pause.version))
    }
}

pub(super) fn write(disk: &dyn Disk, data: &DataDir, pause: Option<&Pause>) -> Result<(), Error> {
    let path = path(data);
    match pause {
        Some(pause) => place(disk, &data.spool, NAME, &encode(pause))?,
        None if path.exists() => disk
            .remove(&path)
            .map_err(|error| Error::new("delete", &path, error))?,
        None => return Ok(()),
    }
    disk.sync_dir(&data.spool)
        .map_err(|error| Error::new("sync", &data.spool, error))
}
