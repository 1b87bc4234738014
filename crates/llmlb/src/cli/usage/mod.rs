//! `llmlb usage`: what was used, and records on their way to a receiver, each exactly once. One verb
//! per file.

mod args;
mod consolidate;
mod deliver;
mod delivered;
mod failed;
mod json;
mod pending;
mod place;
mod report;
mod resend;
mod stage;
mod tally;
mod verify;

use spool::{Error, Options};

pub(super) use args::Usage;

use super::exit::{self, Failure};
use crate::config::env;
use crate::sys;
use args::Verb;
use place::Place;

pub(super) fn usage(args: &Usage, quiet: bool) -> Result<u8, Failure> {
    let place = Place::find(args.data.as_deref(), args.demo)?;
    place.may_exist()?;
    let Some(verb) = &args.verb else {
        return tally::report(&args.report, &place);
    };
    if let Some(flag) = args.report.flag() {
        let message = format!("{flag} before a verb is for the report, which has no verb");
        return Err(Failure::new(exit::USAGE, message).hint("flags of a verb come after it"));
    }
    match verb {
        Verb::Stage(stage) => stage::stage(stage, &place, quiet),
        Verb::Consolidate(consolidate) => consolidate::consolidate(consolidate, &place),
        Verb::Deliver(deliver) => deliver::deliver(deliver, place, quiet),
        Verb::Pending(look) => pending::pending(look, &place, quiet),
        Verb::Failed(look) => failed::failed(look, &place),
        Verb::Verify(look) => verify::verify(look, &place, quiet),
        Verb::Resend(resend) => resend::resend(resend, &place),
    }
}

/// How batches are made.
fn options(batch_size: usize) -> Options {
    let mut options = Options::default();
    options.batch_size = batch_size;
    options.pod_name = sys::host_name(env::text).unwrap_or(options.pod_name);
    options
}

/// What the disk did, and what can be done about it.
fn disk(error: &Error) -> Failure {
    let failure = Failure::new(exit::FAILED, error.to_string());
    if error.is_full() {
        failure.hint("make room on the disk; nothing that was staged is lost")
    } else if error.is_read_only() {
        failure.hint("the disk can only be read; nothing that was staged is lost")
    } else if error.io_error().kind() == std::io::ErrorKind::PermissionDenied {
        let owner = sys::users::owner_of(error.path());
        let owner = owner.map_or_else(String::new, |owner| format!(", {owner}"));
        failure.hint(format!(
            "run it as the user whose data it is{owner}, or name another directory: `--data DIR`"
        ))
    } else {
        failure
    }
}

/// `1 record`, `2 records`
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
    fn one_is_not_many() {
        assert_eq!(counted(1, "record"), "1 record");
        assert_eq!(counted(0, "record"), "0 records");
        assert_eq!(counted(2, "batch"), "2 batches");
        assert_eq!(counted(2, "entry"), "2 entries");
    }
}
