//! The words of `llmlb usage`.

use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::time::Duration;

use clap::Subcommand;

use super::tally::{By, When};
use crate::config::{Format, span};

const EXAMPLES: &str = "\
Examples:
  llmlb usage                                      the last 30 days, by model
  llmlb usage --since 7d --by day,model
  llmlb usage --since 2026-11 --until 2026-11 --by key --csv
  my-program | llmlb usage stage                   JSON objects, one per line
  llmlb usage deliver --to https://billing.example/usage
  llmlb usage deliver --to https://billing.example/usage --every 1h
  llmlb usage pending                              what waits, and why
  llmlb usage verify                               nothing lost, nothing counted twice

The token of the receiver: LLMLB_USAGE_TOKEN, or a file (--token-file).
More: docs/billing.md";

const MILLISECOND: Duration = Duration::from_millis(1);
const DAY: Duration = Duration::from_secs(24 * 60 * 60);
const YEAR: Duration = Duration::from_secs(366 * 24 * 60 * 60);

#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(in crate::cli) struct Usage {
    /// Where the data lies [default: LLMLB_DATA_DIR, or llmlb in the user's data directory]
    #[arg(long, global = true, value_name = "DIR")]
    pub(super) data: Option<PathBuf>,

    /// What `serve --demo` made up, which is kept apart
    #[arg(long, global = true, conflicts_with = "data")]
    pub(super) demo: bool,

    #[command(flatten)]
    pub(super) report: Report,

    #[command(subcommand)]
    pub(super) verb: Option<Verb>,
}

/// What is asked for where there is no verb.
#[derive(Debug, Default, clap::Args)]
pub(super) struct Report {
    /// From when on: 24h, 7d, today, 2026-11-01, 2026-11 (UTC) [default: 30d]
    #[arg(long, value_name = "WHEN", value_parser = When::parse)]
    pub(super) since: Option<When>,

    /// Up to when, likewise; a day or a month is part of it [default: now]
    #[arg(long, value_name = "WHEN", value_parser = When::parse)]
    pub(super) until: Option<When>,

    /// By what: model, key, backend, day; several with commas [default: model]
    #[arg(long, value_name = "FIELD", value_delimiter = ',', value_parser = By::named)]
    pub(super) by: Vec<By>,

    /// Print JSON (docs/billing.md)
    #[arg(long, conflicts_with = "csv")]
    pub(super) json: bool,

    /// Print CSV, for a spreadsheet
    #[arg(long)]
    pub(super) csv: bool,
}

#[derive(Debug, Subcommand)]
pub(super) enum Verb {
    /// Take records in: they are safe when this ends
    Stage(Stage),
    /// Fold what is staged into batches
    Consolidate(Consolidate),
    /// Send everything to its receiver, once or on a schedule
    Deliver(Deliver),
    /// Show the batches that wait for delivery
    Pending(Look),
    /// Show what could not be read or delivered, and why
    Failed(Look),
    /// Prove from the files that nothing is lost or counted twice
    Verify(Look),
    /// Put batches that failed back, to be delivered again
    Resend(Resend),
}

#[derive(Debug, clap::Args)]
pub(super) struct Stage {
    /// Files with JSON objects, one per line; a .json file has one object, laid out in any way
    /// [default: stdin, which is also -]
    #[arg(value_name = "FILE")]
    pub(super) files: Vec<PathBuf>,

    /// Print the counts as JSON
    #[arg(long)]
    pub(super) json: bool,
}

#[derive(Debug, clap::Args)]
pub(super) struct Consolidate {
    #[command(flatten)]
    pub(super) batches: Batches,
}

#[derive(Debug, clap::Args)]
pub(super) struct Batches {
    /// How many records go into a batch
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = batch_size)]
    pub(super) batch_size: usize,
}

#[derive(Debug, clap::Args)]
#[expect(clippy::struct_excessive_bools, reason = "flags as they are typed")]
pub(super) struct Deliver {
    /// The receiver [default: LLMLB_USAGE_URL]
    #[arg(long, value_name = "URL")]
    pub(super) to: Option<String>,

    /// There is no receiver: keep the batches in archive/
    #[arg(long, conflicts_with = "to")]
    pub(super) archive: bool,

    /// Make this the destination of the data directory, in place of the one that it has
    #[arg(long)]
    pub(super) change_destination: bool,

    /// Deliver again and again, so often, until SIGTERM or Ctrl-C
    #[arg(long, value_name = "TIME", value_parser = every)]
    pub(super) every: Option<Duration>,

    /// Try again at once what failed before, unless the receiver asked us to wait
    #[arg(long)]
    pub(super) now: bool,

    #[command(flatten)]
    pub(super) batches: Batches,

    /// A file with the receiver's bearer token [default: what LLMLB_USAGE_TOKEN holds]
    #[arg(long, value_name = "FILE")]
    pub(super) token_file: Option<PathBuf>,

    /// How long an attempt may take
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = timeout)]
    pub(super) timeout: Duration,

    /// The longest wait between attempts, whatever the receiver asks for
    #[arg(long, value_name = "TIME", default_value = "1h", value_parser = wait)]
    pub(super) max_wait: Duration,

    /// How many rounds a batch may fail ..
    #[arg(long, value_name = "N", default_value_t = 10)]
    pub(super) give_up_rounds: u32,

    /// .. and for how long, until it is put into failed/
    #[arg(long, value_name = "TIME", default_value = "7d", value_parser = wait)]
    pub(super) give_up_after: Duration,

    /// Take 409 as a refusal, not as the news that the receiver has the batch already
    #[arg(long)]
    pub(super) conflict_is_failure: bool,

    /// Allow http:// to other machines: anyone on the way can read records and token
    #[arg(long)]
    pub(super) allow_http: bool,

    /// What is posted: json, or cloudevents as OpenMeter takes them
    #[arg(long, value_name = "FORMAT", default_value = "json", value_parser = Format::named)]
    pub(super) format: Format,

    /// Print what was done as JSON (docs/billing.md)
    #[arg(long, conflicts_with = "every")]
    pub(super) json: bool,
}

#[derive(Debug, clap::Args)]
pub(super) struct Look {
    /// Print JSON (docs/billing.md)
    #[arg(long)]
    pub(super) json: bool,
}

#[derive(Debug, clap::Args)]
pub(super) struct Resend {
    /// Batches in failed/ or archive/, by name or path; without any, those of failed/ are listed
    #[arg(value_name = "FILE", conflicts_with = "all")]
    pub(super) files: Vec<PathBuf>,

    /// All of them
    #[arg(long)]
    pub(super) all: bool,

    /// Those of archive/ instead of failed/
    #[arg(long)]
    pub(super) archived: bool,

    /// Only tell what would be done
    #[arg(long)]
    pub(super) dry_run: bool,
}

impl Report {
    /// The first flag that is for it alone.
    pub(super) fn flag(&self) -> Option<&'static str> {
        let flags = [
            ("--since", self.since.is_some()),
            ("--until", self.until.is_some()),
            ("--by", !self.by.is_empty()),
            ("--json", self.json),
            ("--csv", self.csv),
        ];
        let mut typed = flags.into_iter().filter(|(_, is_typed)| *is_typed);
        typed.next().map(|(flag, _)| flag)
    }
}

fn batch_size(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(size @ 1..=100_000) => Ok(size),
        _ => Err("it is a number from 1 to 100000".to_owned()),
    }
}

fn every(text: &str) -> Result<Duration, String> {
    within(text, &(100 * MILLISECOND..=YEAR), "100ms to 366d")
}

fn timeout(text: &str) -> Result<Duration, String> {
    within(text, &(MILLISECOND..=DAY), "1ms to 1d")
}

fn wait(text: &str) -> Result<Duration, String> {
    within(text, &(Duration::ZERO..=YEAR), "0s to 366d")
}

fn within(text: &str, range: &RangeInclusive<Duration>, words: &str) -> Result<Duration, String> {
    span(text, range).map_err(|why| format!("{why}; allowed: {words}"))
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::super::super::args::{self, Args};
    use super::*;

    fn parse(words: &str) -> Result<Verb, String> {
        let words = ["llmlb", "usage"].into_iter().chain(words.split(' '));
        match Args::try_parse_from(words)
            .map_err(|error| error.to_string())?
            .verb
        {
            args::Verb::Usage(usage) => usage.verb.ok_or_else(|| "no verb".to_owned()),
            other => Err(format!("{other:?}")),
        }
    }

    fn deliver(words: &str) -> Result<Deliver, String> {
        match parse(&format!("deliver {words}"))? {
            Verb::Deliver(deliver) => Ok(deliver),
            other => Err(format!("{other:?}")),
        }
    }

    #[test]
    fn times_are_typed_with_their_unit() {
        let typed =
            deliver("--every 1h --timeout 500ms --max-wait 0s --give-up-after 30d").unwrap();
        assert_eq!(typed.every, Some(Duration::from_secs(3600)));
        assert_eq!(typed.timeout, Duration::from_millis(500));
        assert_eq!(typed.max_wait, Duration::ZERO);
        assert_eq!(typed.give_up_after, 30 * DAY);
        for words in [
            "--every 60",
            "--every 0s",
            "--every 1w",
            "--timeout 0s",
            "--every 400d",
        ] {
            let told = deliver(words).unwrap_err();
            assert!(told.contains("allowed: "), "{told}");
        }
    }

    #[test]
    fn defaults_are_those_of_the_contract() {
        let typed = deliver("--now").unwrap();
        assert_eq!(typed.every, None);
        assert_eq!(typed.batches.batch_size, 100);
        assert_eq!(typed.timeout, Duration::from_secs(30));
        assert_eq!(typed.max_wait, Duration::from_secs(3600));
        assert_eq!((typed.give_up_rounds, typed.give_up_after), (10, 7 * DAY));
    }

    #[test]
    fn what_contradicts_itself_is_refused() {
        for words in [
            "resend --all x.json",
            "consolidate --batch-size 0",
            "consolidate --batch-size many",
            "stage --nothing",
            "deliver now",
        ] {
            assert!(parse(words).is_err(), "{words}");
        }
    }

    #[test]
    fn the_data_directory_may_be_named_before_or_after_the_verb() {
        for words in ["usage --data d pending", "usage pending --data d"] {
            let words = ["llmlb"].into_iter().chain(words.split(' '));
            let args::Verb::Usage(usage) = Args::try_parse_from(words).unwrap().verb else {
                panic!("it is usage");
            };
            assert_eq!(usage.data, Some(PathBuf::from("d")));
        }
    }
}
