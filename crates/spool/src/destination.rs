//! The one destination of a data directory: `destination.json`. (S11)
//!
//! ```text
//! {"version":1,"to":"https://billing.example/usage","since":"2026-11-16T12:00:00Z","crc":"xxxxxxxx"}
//! ```
//!
//! The first run that has a destination writes it. Runs with another one, or with none, are refused
//! from then on, so that no process archives or delivers what was staged for another receiver.
//! Archiving writes nothing: a directory without a destination can still be given one.

use std::io;
use std::path::Path;
use std::thread;
use std::time::{Duration, SystemTime};

use serde::{Deserialize, Serialize};

use crate::data_dir::{read_bounded, write_atomically};
use crate::delivery::{DeliveryLock, RunError};
use crate::disk::{Disk, RealDisk};
use crate::error::Error;
use crate::journal::{decode, encode};
use crate::manager::{BatchStore, DeliveryState, LoadedBatch, SpoolManager};
use crate::time::Moment;

const VERSION: u32 = 1;
const NAME: &str = "destination.json";
/// How many names of batches are in memory at a time.
const PAGE: usize = 1024;
/// How long a process that delivers is waited for before its destination is written.
const MOST_TRIES: u32 = 20;
const PAUSE: Duration = Duration::from_millis(50);

#[derive(Serialize, Deserialize)]
struct DestinationFile {
    version: u32,
    to: String,
    since: Moment,
}

/// Result of a change of the destination.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ChangedDestination {
    /// The destination before.
    pub from: Option<String>,
    /// Batches that the old destination may have. They are in `failed/`, as ambiguous.
    pub ambiguous: u64,
}

/// Returns the destination of a data directory, if it has one.
pub fn destination(data: &Path) -> Result<Option<String>, Error> {
    read(&RealDisk, data)
}

/// Makes sure that a data directory delivers to this destination, or to none, and writes it there
/// if it has none. A process calls this before it stages records for a destination.
///
/// ```
/// use spool::{RunError, claim_destination, destination};
///
/// let data = tempfile::tempdir()?;
/// claim_destination(data.path(), Some("https://a.example/"))?;
/// let refused = claim_destination(data.path(), None).unwrap_err();
/// assert!(matches!(refused, RunError::OtherDestination { .. }));
/// assert_eq!(destination(data.path())?.as_deref(), Some("https://a.example/"));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn claim_destination(data: &Path, to: Option<&str>) -> Result<(), RunError> {
    for _ in 0..MOST_TRIES {
        if compare(&RealDisk, data, to)?.is_some() || to.is_none() {
            return Ok(());
        }
        match DeliveryLock::acquire(data) {
            Ok(_lock) => return claim(&RealDisk, data, to),
            Err(RunError::Busy { .. }) => thread::sleep(PAUSE),
            Err(error) => return Err(error),
        }
    }
    // The first run writes it.
    Ok(())
}

/// The same for the only process that delivers.
pub(crate) fn claim(disk: &dyn Disk, data: &Path, to: Option<&str>) -> Result<(), RunError> {
    if compare(disk, data, to)?.is_none()
        && let Some(to) = to
    {
        match write(disk, data, to) {
            // A full disk must not keep delivery from making room. The next run writes it.
            Err(error) if error.is_full() => tracing::debug!(%error, "no destination is written"),
            written => written.map_err(RunError::Disk)?,
        }
    }
    Ok(())
}

/// Gives a data directory another destination, or none. Batches that wait go there from then on,
/// except those that the old one may have: they are put into `failed/`, as ambiguous.
pub fn change_destination(data: &Path, to: Option<&str>) -> Result<ChangedDestination, RunError> {
    let _lock = DeliveryLock::acquire(data)?;
    let from = match read(&RealDisk, data) {
        // It is replaced.
        Err(error) if error.is_damage() => None,
        from => from.map_err(RunError::Disk)?,
    };
    let mut changed = ChangedDestination { from, ambiguous: 0 };
    if changed.from.as_deref() != to {
        let why = "ambiguous: the destination was changed, and the old one may have it";
        changed.ambiguous = forget_attempts(&SpoolManager::new(data), why)?;
    }
    match to {
        Some(to) => write(&RealDisk, data, to),
        None => remove(data),
    }
    .map_err(RunError::Disk)?;
    Ok(changed)
}

/// Makes batches that wait as good as new, unless a destination may have them.
fn forget_attempts(store: &SpoolManager, why: &str) -> Result<u64, Error> {
    store.tidy()?;
    let (mut ambiguous, mut after) = (0, None);
    loop {
        let names = store.pending(after.as_deref(), PAGE)?;
        for name in &names {
            let state = store.state(name)?;
            if state == DeliveryState::default() {
                continue;
            }
            let LoadedBatch::Batch(batch) = store.load_for_delivery(name)? else {
                continue;
            };
            if state.is_unknown() {
                store.fail(&batch, &state, why)?;
                ambiguous += 1;
            } else {
                store.set_state(name, &DeliveryState::default())?;
            }
        }
        after = names.last().cloned();
        if after.is_none() {
            return Ok(ambiguous);
        }
    }
}

/// Returns the destination that is written, if it is the one that is asked for.
fn compare(disk: &dyn Disk, data: &Path, to: Option<&str>) -> Result<Option<String>, RunError> {
    match read(disk, data).map_err(RunError::Disk)? {
        Some(noted) if to != Some(&*noted) => Err(RunError::OtherDestination {
            asked: to.map(str::to_owned),
            noted,
        }),
        noted => Ok(noted),
    }
}

fn read(disk: &dyn Disk, data: &Path) -> Result<Option<String>, Error> {
    let path = data.join(NAME);
    let bytes = match read_bounded(disk, &path) {
        Ok(bytes) => bytes.unwrap_or_default(),
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(Error::read(&path, error)),
    };
    let noted = check(&bytes).map_err(|why| Error::damage(&path, why))?;
    Ok(Some(noted.to))
}

fn check(bytes: &[u8]) -> Result<DestinationFile, String> {
    let noted: DestinationFile = decode(bytes)?;
    if noted.version == VERSION {
        Ok(noted)
    } else {
        Err(format!("its version is {}, not {VERSION}", noted.version))
    }
}

fn write(disk: &dyn Disk, data: &Path, to: &str) -> Result<(), Error> {
    let noted = DestinationFile {
        version: VERSION,
        to: to.to_owned(),
        since: SystemTime::now().into(),
    };
    write_atomically(disk, data, NAME, &encode(&noted))?;
    sync(disk, data)
}

fn remove(data: &Path) -> Result<(), Error> {
    let path = data.join(NAME);
    match RealDisk.remove(&path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            return Err(Error::new("delete", &path, error));
        }
        _ => {}
    }
    sync(&RealDisk, data)
}

fn sync(disk: &dyn Disk, data: &Path) -> Result<(), Error> {
    disk.sync_dir(data)
        .map_err(|error| Error::new("sync", data, error))
}
