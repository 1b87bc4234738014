//! What cannot be read is set aside with a reason, never dropped.

use std::io;
use std::path::Path;
use std::time::SystemTime;

use serde::{Deserialize, Serialize};

use crate::book::{decode, encode};
use crate::data_dir::place;
use crate::disk::Disk;
use crate::error::Error;
use crate::time::Moment;

const VERSION: u32 = 1;
const ENDING: &str = ".reason.json";

/// Keeps these bytes in `failed/` under this name, with the reason beside them. Doing it again
/// changes nothing.
pub(crate) fn set_aside(
    disk: &dyn Disk,
    failed: &Path,
    name: &str,
    bytes: &[u8],
    reason: &str,
) -> Result<(), Error> {
    let path = failed.join(name);
    if path.exists() {
        return Ok(());
    }
    // The reason first: what is there has one.
    let checksum = format!("{:08x}", crc32fast::hash(bytes));
    Reason::new(name, reason, Some(checksum)).write(disk, failed)?;
    place(disk, failed, name, bytes)?;
    disk.sync_dir(failed)
        .map_err(|error| Error::new("sync", failed, error))
}

/// The same for a file that is too long to be copied.
pub(crate) fn move_aside(
    disk: &dyn Disk,
    path: &Path,
    failed: &Path,
    name: &str,
    reason: &str,
) -> Result<(), Error> {
    Reason::new(name, reason, None).write(disk, failed)?;
    disk.rename(path, &failed.join(name))
        .map_err(|error| Error::new("set aside", path, error))?;
    disk.sync_dir(failed)
        .map_err(|error| Error::new("sync", failed, error))
}

/// Why something is in `failed/`: `{name}.reason.json` beside it.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Reason {
    version: u32,
    pub(crate) name: String,
    #[serde(rename = "reason")]
    pub(crate) why: String,
    pub(crate) at: Moment,
    /// Of what was set aside, if it is not a batch, which has its own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) checksum: Option<String>,
    /// Of a batch: how many records, and how often it was tried.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) batch: Option<BatchReason>,
}

/// What is known of a batch that could not be delivered.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct BatchReason {
    pub(crate) records: u64,
    pub(crate) attempts: u32,
    pub(crate) first_attempt: Option<Moment>,
    /// The destination may have it.
    pub(crate) ambiguous: bool,
}

impl Reason {
    pub(crate) fn new(name: &str, reason: &str, checksum: Option<String>) -> Self {
        Self {
            version: VERSION,
            name: name.to_owned(),
            why: reason.to_owned(),
            at: SystemTime::now().into(),
            checksum,
            batch: None,
        }
    }

    pub(crate) fn file_name(name: &str) -> String {
        format!("{name}{ENDING}")
    }

    /// Of what a file is the reason.
    pub(crate) fn of(file_name: &str) -> Option<&str> {
        file_name.strip_suffix(ENDING)
    }

    pub(crate) fn write(&self, disk: &dyn Disk, failed: &Path) -> Result<(), Error> {
        let path = failed.join(&self.name);
        tracing::warn!(path = %path.display(), reason = self.why, "set aside");
        place(disk, failed, &Self::file_name(&self.name), &encode(self))
    }

    pub(crate) fn read(failed: &Path, name: &str) -> Result<Option<Self>, Error> {
        let path = failed.join(Self::file_name(name));
        match std::fs::read(&path) {
            Ok(bytes) => decode(&bytes)
                .map(Some)
                .map_err(|why| Error::new("use", &path, io::Error::other(why))),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(Error::new("read", &path, error)),
        }
    }
}
