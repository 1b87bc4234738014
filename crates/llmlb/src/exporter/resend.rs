//! Moves failed or archived batches back into the spool, for `llmlb usage resend` and the dashboard.

use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use spool::{DeliveryLock, RunError, SpoolManager};

use crate::config::FleetConfig;
use crate::fleet::Fleet;

/// Maximum time for which [`resend_failed`] waits for a delivery run.
const LOCK_TIMEOUT: Duration = Duration::from_secs(5);
const PAUSE: Duration = Duration::from_millis(50);

/// Outcome of [`resend_failed`].
#[derive(Debug, Default)]
pub(crate) struct Resent {
    /// Number of batches that were moved back.
    pub(crate) batches: u64,
    /// Errors of the others.
    pub(crate) problems: Vec<String>,
}

/// Moves batches back into the spool. Returns their number, and adds the errors of the others to `problems`.
/// Fails if another process delivers.
pub(crate) fn move_back<'a>(
    data: &Path,
    spool: &SpoolManager,
    names: impl IntoIterator<Item = &'a str>,
    problems: &mut Vec<String>,
) -> Result<u64, RunError> {
    // Hold the delivery lock: the spool must not change while another process delivers from it.
    let _lock = DeliveryLock::acquire(data)?;
    let mut done = 0;
    for name in names {
        match spool.resend(name) {
            Ok(()) => done += 1,
            Err(error) => problems.push(error.to_string()),
        }
    }
    Ok(done)
}

/// Moves all failed batches back into the spool. Blocks while another process delivers, and fails if that takes
/// too long. The error is a sentence for the user.
pub(crate) fn resend_failed(
    data: &Path,
    fleet: &FleetConfig,
    instance: &str,
) -> Result<Resent, String> {
    let found = SpoolManager::new(data).failed();
    let found = found.map_err(|error| error.to_string())?;
    let batches = found.iter().filter(|one| one.is_batch);
    let names: Vec<&str> = batches.map(|one| one.name.as_str()).collect();
    let mut resent = Resent::default();
    if names.is_empty() {
        return Ok(resent);
    }
    let mut fleet = Fleet::new(fleet, data, instance);
    let spool = fleet.spool();
    let start = Instant::now();
    loop {
        let problems = &mut resent.problems;
        let moved = fleet.run(|| move_back(data, &spool, names.iter().copied(), problems));
        match moved.map_err(|error| error.to_string())? {
            Ok(batches) => {
                resent.batches = batches;
                return Ok(resent);
            }
            Err(RunError::Busy { .. }) if start.elapsed() < LOCK_TIMEOUT => thread::sleep(PAUSE),
            Err(error) => return Err(error.to_string()),
        }
    }
}
