//! `llmlb usage`: reports usage, and stages, delivers and verifies usage records. One verb per file.

mod args;
mod consolidate;
mod data_dir;
mod deliver;
mod delivered;
mod export;
mod failed;
mod json;
mod pending;
mod report;
mod resend;
mod stage;
mod tally;
mod verify;

use spool::{Error, Options};

pub(super) use args::UsageArgs;

use super::exit::{self, Failure};
use crate::config::data::DataConfig;
use crate::config::env;
use crate::fleet::{Fleet, FleetError};
use crate::{meter, sys};
use args::UsageVerb;
use data_dir::DataDir;

pub(super) fn usage(args: &UsageArgs, quiet: bool) -> Result<u8, Failure> {
    let Some(verb) = &args.verb else {
        return tally::report(&args.report, &DataDir::find(&args.data)?);
    };
    if let Some(flag) = args.report.flag() {
        let message = format!(
            "{flag} must not be in front of a verb: there it applies to the report, which is \
             `llmlb usage` without a verb"
        );
        let hint = format!("write the flags of a verb after the verb: llmlb usage VERB {flag}");
        return Err(Failure::new(exit::USAGE, message).hint(hint));
    }
    let data = || DataDir::find(&args.data);
    match verb {
        UsageVerb::Stage(stage) => stage::stage(stage, &data()?, quiet),
        UsageVerb::Consolidate(consolidate) => consolidate::consolidate(consolidate, &args.data),
        UsageVerb::Deliver(deliver) => deliver::deliver(deliver, &args.data, quiet),
        UsageVerb::Pending(list) => pending::pending(list, &data()?, quiet),
        UsageVerb::Failed(list) => failed::failed(list, &data()?),
        UsageVerb::Export(export) => export::export(export, &data()?),
        UsageVerb::Verify(list) => verify::verify(list, &data()?, quiet),
        UsageVerb::Resend(resend) => resend::resend(resend, &args.data),
    }
}

/// Returns the options of a consolidation into batches of at most this many records.
fn options(batch_size: usize) -> Options {
    let mut options = Options::default();
    options.batch_size = batch_size;
    options.pod_name = sys::host_name(env::text).unwrap_or(options.pod_name);
    options.grouping = meter::grouping();
    options
}

/// Returns the fleet of servers that share the data directory (`fleet.store`).
fn fleet(config: &DataConfig, data: &DataDir, verb: &str) -> Fleet {
    let host = sys::host_name(env::text).unwrap_or_default();
    Fleet::new(&config.fleet, data.dir(), &format!("{host}:{verb}"))
}

/// Returns the error for a run that the fleet's lease did not permit, with a hint.
fn refused(error: &FleetError) -> Failure {
    let failure = Failure::new(exit::FAILED, error.to_string());
    match error.hint() {
        Some(hint) => failure.hint(hint),
        None => failure,
    }
}

/// Returns the error for a failed disk operation, with a hint.
fn disk(error: &Error) -> Failure {
    let failure = Failure::new(exit::FAILED, error.to_string());
    if error.is_full() {
        failure.hint("no staged record is lost: free space on the disk, then repeat the command")
    } else if error.is_read_only() {
        failure.hint("no staged record is lost: make the disk writable, then repeat the command")
    } else if error.io_error().kind() == std::io::ErrorKind::PermissionDenied {
        let owner = sys::users::owner_of(error.path());
        let owner = owner.map_or_else(String::new, |owner| format!(", {owner}"));
        failure.hint(format!(
            "run the command as the owner of the data{owner}, or name another directory: `--data DIR`"
        ))
    } else {
        failure
    }
}

/// Formats a count with its noun in the right number: `1 record`, `2 records`.
fn counted(count: u64, what: &str) -> String {
    match (count, what) {
        (1, _) => format!("1 {what}"),
        (_, "batch") => format!("{count} batches"),
        (_, "entry") => format!("{count} entries"),
        (_, "staged entry") => format!("{count} staged entries"),
        _ => format!("{count} {what}s"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counted_uses_singular_and_plural() {
        assert_eq!(counted(1, "record"), "1 record");
        assert_eq!(counted(0, "record"), "0 records");
        assert_eq!(counted(2, "batch"), "2 batches");
        assert_eq!(counted(2, "entry"), "2 entries");
    }
}
