//! `llmlb usage resend`: moves failed or archived batches back into the spool.

use spool::{Failed, RunError, SpoolManager};

use super::args::Resend;
use super::data_dir::DataDir;
use super::{counted, deliver, disk, failed, fleet, refused};
use crate::cli::data_args::DataArgs;
use crate::cli::exit::{self, Failure};
use crate::cli::output;
use crate::exporter;
use crate::fleet::FleetError;

pub(super) fn resend(args: &Resend, flags: &DataArgs) -> Result<u8, Failure> {
    let data = &DataDir::find(flags)?;
    let found = if args.archived {
        archived(data)?
    } else {
        failed::list(data)?
    };
    if args.files.is_empty() && !args.all {
        return offer(found, data, args.archived);
    }
    let (chosen, mut problems) = choose(args, found, data);
    if chosen.is_empty() && problems.is_empty() {
        output::data("no batches can be resent")?;
        return Ok(exit::DONE);
    }
    let ambiguous = chosen.iter().filter(|one| one.is_ambiguous).count() as u64;
    let done = if args.dry_run {
        chosen.len() as u64
    } else {
        let mut fleet = fleet(&flags.config()?, data, "resend");
        let spool = fleet.spool();
        let moved = fleet.run(|| move_back(&chosen, &spool, data, &mut problems));
        moved.map_err(|error| held(&error))??
    };
    let batches = counted(done, "batch");
    output::data(&if args.dry_run {
        format!("{batches} would be moved back into the spool")
    } else {
        format!("{batches} moved back into the spool")
    })?;
    if ambiguous > 0 {
        output::message(&format!(
            "the receiver may already have {}; the idempotency keys stay the same, so it can \
             detect them",
            counted(ambiguous, "batch")
        ));
    }
    if done > 0 && !args.dry_run {
        output::hint(&format!("deliver them with {}", data.command("deliver")));
    }
    if problems.is_empty() {
        return Ok(exit::DONE);
    }
    let list = data.command("resend");
    Err(Failure::new(exit::FAILED, problems.join("\nllmlb: "))
        .hint(format!("list the batches that can be resent with {list}")))
}

fn archived(data: &DataDir) -> Result<Vec<Failed>, Failure> {
    data.require()?;
    SpoolManager::new(data.dir())
        .archived()
        .map_err(|error| disk(&error))
}

/// Moves batches back into the spool. Returns the number of moved batches, and adds an error to
/// `problems` for each other one.
fn move_back(
    chosen: &[Chosen],
    spool: &SpoolManager,
    data: &DataDir,
    problems: &mut Vec<String>,
) -> Result<u64, Failure> {
    let names = chosen.iter().map(|one| one.name.as_str());
    exporter::move_back(data.dir(), spool, names, problems).map_err(|error| busy(&error, data))
}

/// Returns the error for a move of batches that the fleet's lease did not permit.
fn held(error: &FleetError) -> Failure {
    let failure = refused(error);
    match error {
        FleetError::Held(_) => {
            failure.hint("no batch was moved; repeat the command when that process is done")
        }
        _ => failure,
    }
}

/// Returns the error if another process holds the delivery lock, or if the lock cannot be acquired.
fn busy(error: &RunError, data: &DataDir) -> Failure {
    let failure = deliver::failed(error, data);
    match error {
        RunError::Busy { .. } => {
            failure.hint("no batch was moved; repeat the command when that process is done")
        }
        _ => failure,
    }
}

/// Prints the batches that can be resent and the commands that do it, for `resend` without
/// arguments.
fn offer(found: Vec<Failed>, data: &DataDir, is_archived: bool) -> Result<u8, Failure> {
    let batches: Vec<Failed> = found.into_iter().filter(|one| one.is_batch).collect();
    if batches.is_empty() {
        output::data("no batches can be resent")?;
        return Ok(exit::DONE);
    }
    output::data(&failed::table(&batches))?;
    let words = if is_archived { " --archived" } else { "" };
    let one = data.command("resend FILE");
    let all = data.command(&format!("resend{words} --all"));
    output::hint(&format!(
        "move one batch back into the spool with {one}, or all batches with {all}"
    ));
    Ok(exit::DONE)
}

/// A batch to resend.
struct Chosen {
    name: String,
    is_ambiguous: bool,
}

impl From<Failed> for Chosen {
    fn from(one: Failed) -> Self {
        Self {
            name: one.name,
            is_ambiguous: one.is_ambiguous,
        }
    }
}

/// Returns the batches that the arguments select, and a problem for each argument that selects
/// none.
fn choose(args: &Resend, found: Vec<Failed>, data: &DataDir) -> (Vec<Chosen>, Vec<String>) {
    if args.all {
        let batches = found.into_iter().filter(|one| one.is_batch);
        return (batches.map(Chosen::from).collect(), Vec::new());
    }
    let (mut chosen, mut problems) = (Vec::new(), Vec::new());
    for file in &args.files {
        let name = file.file_name().unwrap_or(file.as_os_str());
        let name = name.to_string_lossy().into_owned();
        match found.iter().find(|one| one.name == name) {
            Some(one) if one.is_batch => chosen.push(Chosen::from(one.clone())),
            Some(one) => problems.push(format!("{name} cannot be resent: {}", one.reason)),
            None if data.dir().join("archive").join(&name).is_file() => chosen.push(Chosen {
                name,
                is_ambiguous: false,
            }),
            None => problems.push(format!(
                "{} is neither in failed/ nor in archive/",
                file.display()
            )),
        }
    }
    (chosen, problems)
}
