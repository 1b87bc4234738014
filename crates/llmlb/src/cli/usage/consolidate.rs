//! `llmlb usage consolidate`: consolidates staged records into batches.

use spool::{Consolidator, LockError};

use super::args::Consolidate;
use super::data_dir::DataDir;
use super::{counted, disk, fleet, options, refused};
use crate::cli::data_args::DataArgs;
use crate::cli::exit::{self, Failure};
use crate::cli::output;
use crate::fleet::FleetError;

pub(super) fn consolidate(args: &Consolidate, data: &DataArgs) -> Result<u8, Failure> {
    let config = data.config()?;
    let data = DataDir::of(data, &config)?;
    if !data.dir().exists() {
        let dir = data.dir().display();
        output::data(&format!("no staged records: {dir} does not exist"))?;
        return Ok(exit::DONE);
    }
    let mut fleet = fleet(&config, &data, "consolidate");
    let mut consolidator = fleet.consolidator();
    match fleet.run(|| consolidate_all(args, &mut consolidator)) {
        Ok(done) => done,
        Err(FleetError::Held(holder)) => {
            let from = data.dir().display();
            output::data(&format!("skipped: {holder} is delivering from {from}"))?;
            Ok(exit::DONE)
        }
        Err(error) => Err(refused(&error)),
    }
}

fn consolidate_all(args: &Consolidate, consolidator: &mut Consolidator) -> Result<u8, Failure> {
    let options = options(args.batches.batch_size);
    let (mut entries, mut records, mut batches) = (0, 0, 0);
    loop {
        let done = match consolidator.next(&options) {
            Ok(done) => done,
            Err(LockError::InUse { pid, pod_name, .. }) => {
                let owner = owner(pid, pod_name.as_deref());
                output::data(&format!(
                    "skipped: {owner} is consolidating this data directory"
                ))?;
                return Ok(exit::DONE);
            }
            Err(error) => return Err(failed(&error)),
        };
        entries += done.entries as u64;
        records += done.records as u64;
        batches += done.batches as u64;
        // Repeat until no staged entry is left: one call consolidates a bounded number of entries.
        if done.entries == 0 {
            break;
        }
    }
    output::data(&if entries == 0 {
        "no staged records".to_owned()
    } else {
        format!(
            "consolidated {}: {} in {}",
            counted(entries, "entry"),
            counted(records, "record"),
            counted(batches, "batch")
        )
    })?;
    Ok(exit::DONE)
}

/// Formats the process that is consolidating the data directory already, for the message that this
/// run is skipped.
fn owner(pid: Option<u32>, pod: Option<&str>) -> String {
    match (pid, pod) {
        (Some(pid), Some(pod)) => format!("PID {pid} on {pod}"),
        (Some(pid), None) => format!("PID {pid}"),
        (None, Some(pod)) => format!("a process on {pod}"),
        (None, None) => "another process".to_owned(),
    }
}

pub(super) fn failed(error: &LockError) -> Failure {
    match error {
        LockError::Disk(error) => disk(error),
        other => Failure::new(exit::FAILED, other.to_string()),
    }
}
