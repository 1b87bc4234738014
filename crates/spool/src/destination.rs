//! The one destination of a data directory: `destination.json`. (promise S11)
//!
//! ```text
//! {"version":1,"to":"https://billing.example/usage","since":"2026-11-16T12:00:00Z","crc":"xxxxxxxx"}
//! ```
//!
//! The first run that has a destination writes the file. Later runs with another destination, or
//! with none, are refused, so that no process archives or delivers what was staged for another
//! receiver. Archiving writes no file: a directory without a destination can still be given one.

use std::io;
use std::path::Path;
use std::thread;
use std::time::{Duration, SystemTime};

use serde::{Deserialize, Serialize};

use crate::data_dir::{read_bounded, write_atomically};
use crate::delivery::{DeliveryLock, RunError};
use crate::disk::{Disk, RealDisk};
use crate::error::Error;
use crate::journal::{decode_version, encode};
use crate::manager::{DeliveryState, LoadedBatch, SpoolManager};
use crate::time::Moment;

const VERSION: u32 = 1;
const NAME: &str = "destination.json";
/// Maximum number of batch names in memory, so that memory is bounded for any number of pending
/// batches.
const PAGE: usize = 1024;
/// Maximum number of attempts to acquire the delivery lock while another process delivers, with a
/// pause after each.
const MAX_TRIES: u32 = 20;
const PAUSE: Duration = Duration::from_millis(50);

#[derive(Serialize, Deserialize)]
struct DestinationFile {
    version: u32,
    to: String,
    since: Moment,
}

/// Result of changing the destination of a data directory.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ChangedDestination {
    /// Old destination.
    pub from: Option<String>,
    /// Number of batches that the old destination may have. They are in `failed/`, as ambiguous.
    pub ambiguous: u64,
}

/// Returns the destination of a data directory, if it has one.
pub fn destination(data: &Path) -> Result<Option<String>, Error> {
    read(&RealDisk, data)
}

/// Checks that a data directory delivers to this destination, or to none. Writes the destination if
/// the directory has none. A process calls this before it stages records for a destination.
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
    for _ in 0..MAX_TRIES {
        if compare(&RealDisk, data, to)?.is_some() || to.is_none() {
            return Ok(());
        }
        match DeliveryLock::acquire(data) {
            Ok(_lock) => return claim(&RealDisk, data, to),
            Err(RunError::Busy { .. }) => thread::sleep(PAUSE),
            Err(error) => return Err(error),
        }
    }
    // Another process still owns the delivery lock, so the destination is not written now. The next
    // run with a destination writes it.
    Ok(())
}

/// [`claim_destination`] for the owner of the delivery lock.
pub(crate) fn claim(disk: &dyn Disk, data: &Path, to: Option<&str>) -> Result<(), RunError> {
    if compare(disk, data, to)?.is_none()
        && let Some(to) = to
    {
        match write(disk, data, to) {
            // Continue without `destination.json` if the disk is full, because delivery frees
            // space. The next run writes the file.
            Err(error) if error.is_full() => tracing::debug!(%error, "destination not written"),
            written => written?,
        }
    }
    Ok(())
}

/// Gives a data directory another destination, or none. Pending batches are delivered to the new
/// destination, except those that the old one may have: they move to `failed/` as ambiguous.
///
/// With a manager that has a [`Fence`](crate::Fence), nothing is changed after the fence was lost. A
/// change that was interrupted is completed by repeating the call.
///
/// ```
/// use spool::{SpoolManager, change_destination, claim_destination, destination};
///
/// let data = tempfile::tempdir()?;
/// claim_destination(data.path(), Some("https://a.example/"))?;
/// change_destination(&SpoolManager::new(data.path()), Some("https://b.example/"))?;
/// assert_eq!(destination(data.path())?.as_deref(), Some("https://b.example/"));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn change_destination(
    spool: &SpoolManager,
    to: Option<&str>,
) -> Result<ChangedDestination, RunError> {
    let (disk, data) = (spool.disk(), spool.root());
    let _lock = DeliveryLock::acquire(data)?;
    let (from, is_damaged) = match read(disk, data) {
        // A damaged `destination.json` names no destination. It is replaced, because this call is
        // how a person repairs it.
        Err(error) if error.is_damage() => (None, true),
        from => (from.map_err(RunError::Disk)?, false),
    };
    let mut changed = ChangedDestination { from, ambiguous: 0 };
    if is_damaged || changed.from.as_deref() != to {
        let reason = "ambiguous: the destination was changed, and the old one may have the batch";
        changed.ambiguous = forget_attempts(spool, reason)?;
    }
    match to {
        Some(to) => write(disk, data, to),
        None => remove(disk, data),
    }?;
    Ok(changed)
}

/// Resets the delivery state of pending batches, so that their attempts at the old destination do
/// not count for the new one. A batch that may have reached the old destination moves to `failed/`
/// with `reason`: the new destination could count it a second time. Returns the number of batches
/// that moved to `failed/`.
fn forget_attempts(store: &SpoolManager, reason: &str) -> Result<u64, Error> {
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
                store.fail(&batch, &state, reason)?;
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

/// Returns the stored destination, or an error if it differs from the requested one.
fn compare(disk: &dyn Disk, data: &Path, to: Option<&str>) -> Result<Option<String>, RunError> {
    match read(disk, data).map_err(RunError::Disk)? {
        Some(stored) if to != Some(&*stored) => Err(RunError::OtherDestination {
            requested: to.map(str::to_owned),
            stored,
        }),
        stored => Ok(stored),
    }
}

fn read(disk: &dyn Disk, data: &Path) -> Result<Option<String>, Error> {
    let path = data.join(NAME);
    let bytes = match read_bounded(disk, &path) {
        Ok(bytes) => bytes.unwrap_or_default(),
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(Error::read(&path, error)),
    };
    let file: DestinationFile = decode_version(&path, &bytes, VERSION)?;
    Ok(Some(file.to))
}

fn write(disk: &dyn Disk, data: &Path, to: &str) -> Result<(), Error> {
    let file = DestinationFile {
        version: VERSION,
        to: to.to_owned(),
        since: SystemTime::now().into(),
    };
    write_atomically(disk, data, NAME, &encode(&file))?;
    sync(disk, data)
}

fn remove(disk: &dyn Disk, data: &Path) -> Result<(), Error> {
    let path = data.join(NAME);
    match disk.remove(&path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            return Err(Error::new("delete", &path, error));
        }
        _ => {}
    }
    sync(disk, data)
}

fn sync(disk: &dyn Disk, data: &Path) -> Result<(), Error> {
    disk.sync_dir(data)
        .map_err(|error| Error::new("sync", data, error))
}
