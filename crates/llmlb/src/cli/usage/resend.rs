//! `llmlb usage resend`: batches that failed go back into the spool.

use spool::{DeliveryLock, Failed, RunError, SpoolManager};

use super::args::Resend;
use super::place::Place;
use super::{counted, deliver, disk, failed};
use crate::cli::exit::{self, Failure};
use crate::cli::output;

pub(super) fn resend(args: &Resend, place: &Place) -> Result<u8, Failure> {
    let found = if args.archived {
        archived(place)?
    } else {
        failed::list(place)?
    };
    if args.files.is_empty() && !args.all {
        return offer(found, place, args.archived);
    }
    let (chosen, mut problems) = choose(args, found, place);
    if chosen.is_empty() && problems.is_empty() {
        output::data("nothing can be resent")?;
        return Ok(exit::DONE);
    }
    let ambiguous = chosen.iter().filter(|one| one.is_ambiguous).count() as u64;
    let mut done = 0;
    // What waits must not change under the hands of whoever delivers it.
    let lock = (!args.dry_run)
        .then(|| DeliveryLock::acquire(place.dir()).map_err(|error| busy(&error, place)))
        .transpose()?;
    let spool = SpoolManager::of(place.dir());
    for one in chosen {
        let resent = if args.dry_run {
            Ok(())
        } else {
            spool.resend(&one.name)
        };
        match resent {
            Ok(()) => done += 1,
            Err(error) => problems.push(error.to_string()),
        }
    }
    drop(lock);
    let told = counted(done, "batch");
    output::data(&if args.dry_run {
        format!("{told} would be put back into the spool")
    } else {
        format!("{told} put back into the spool")
    })?;
    if ambiguous > 0 {
        output::say(&format!(
            "{} may be with the receiver already: it can tell by the keys, which stay the same",
            counted(ambiguous, "batch")
        ));
    }
    if done > 0 && !args.dry_run {
        output::hint(&format!(
            "{} sends what was put back",
            place.command("deliver --to URL")
        ));
    }
    if problems.is_empty() {
        return Ok(exit::DONE);
    }
    let list = place.command("resend");
    Err(Failure::new(exit::FAILED, problems.join("\nllmlb: "))
        .hint(format!("{list} lists what can be resent")))
}

/// What is in the archive.
fn archived(place: &Place) -> Result<Vec<Failed>, Failure> {
    place.must_exist()?;
    SpoolManager::of(place.dir())
        .archived()
        .map_err(|error| disk(&error))
}

/// Somebody delivers, or the lock cannot be had.
fn busy(error: &RunError, place: &Place) -> Failure {
    let failure = deliver::failed(error, place);
    match error {
        RunError::Busy { .. } => failure.hint("nothing was changed: try again when it is done"),
        _ => failure,
    }
}

/// What could be resent.
fn offer(found: Vec<Failed>, place: &Place, is_archived: bool) -> Result<u8, Failure> {
    let batches: Vec<Failed> = found.into_iter().filter(|one| one.is_batch).collect();
    if batches.is_empty() {
        output::data("nothing can be resent")?;
        return Ok(exit::DONE);
    }
    output::data(&failed::table(&batches))?;
    let words = if is_archived { " --archived" } else { "" };
    let one = place.command("resend FILE");
    let all = place.command(&format!("resend{words} --all"));
    output::hint(&format!(
        "{one} puts one back into the spool, {all} all of them"
    ));
    Ok(exit::DONE)
}

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

/// Those that were asked for, and what is wrong with the others.
fn choose(args: &Resend, found: Vec<Failed>, place: &Place) -> (Vec<Chosen>, Vec<String>) {
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
            None if place.dir().join("archive").join(&name).is_file() => chosen.push(Chosen {
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
