//! Command line arguments of `llmlb usage`.

use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::time::Duration;

use clap::Subcommand;

use super::tally::{By, When, Zone};
use crate::cli::data_args::DataArgs;
use crate::config::{Format, span};

const EXAMPLES: &str = "\
Examples:
  llmlb usage                                      the last 30 days, by model
  llmlb usage --since 7d --by day,model
  llmlb usage --since 2026-11 --until 2026-11 --tz Europe/Berlin --by team,key --csv
  llmlb usage export --since 2026-11 --until 2026-11 --team search -o november.csv
  my-program | llmlb usage stage                   JSON objects, one per line
  llmlb usage deliver --to https://billing.example/usage
  llmlb usage deliver --to https://billing.example/usage --every 1h
  llmlb usage pending                              pending batches and their last error
  llmlb usage verify                               prove that no record is lost or counted twice

The receiver's token comes from --token-file FILE or LLMLB_USAGE_TOKEN.
More: docs/billing.md";

const EXPORT_EXAMPLES: &str = "\
Examples:
  llmlb usage export --since yesterday --until yesterday > records.csv
  llmlb usage export --since 2026-11 --until 2026-11 --team search -o search.csv
  llmlb usage export --since 24h --format jsonl | jq .tokens

Exits 1 if records of the period are no longer on disk: delivered batches are deleted.
More: docs/billing.md";

const MILLISECOND: Duration = Duration::from_millis(1);
const DAY: Duration = Duration::from_secs(24 * 60 * 60);
const YEAR: Duration = Duration::from_secs(366 * 24 * 60 * 60);

#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(in crate::cli) struct UsageArgs {
    #[command(flatten)]
    pub(super) data: DataArgs,

    #[command(flatten)]
    pub(super) report: ReportArgs,

    #[command(subcommand)]
    pub(super) verb: Option<UsageVerb>,
}

/// Arguments of the report, which `llmlb usage` prints without a verb.
#[derive(Debug, Default, clap::Args)]
pub(super) struct ReportArgs {
    #[command(flatten)]
    pub(super) period: PeriodArgs,

    /// Fields to group by, separated by commas: team, key, model, served_model, backend, day, hour
    /// [default: model]
    #[arg(long, value_name = "FIELD", value_delimiter = ',', value_parser = By::parse)]
    pub(super) by: Vec<By>,

    /// Print JSON (docs/billing.md)
    #[arg(long, conflicts_with = "csv")]
    pub(super) json: bool,

    /// Print CSV, for a spreadsheet
    #[arg(long)]
    pub(super) csv: bool,
}

/// Period of a report or an export.
#[derive(Clone, Debug, Default, clap::Args)]
pub(super) struct PeriodArgs {
    /// Start: 24h, 7d, today, 2026-11-01, 2026-11, 2026-11-01T13:00 [default: 30d]
    #[arg(long, value_name = "WHEN", value_parser = When::parse)]
    pub(super) since: Option<When>,

    /// End, in the forms of --since; a day or month is included [default: now]
    #[arg(long, value_name = "WHEN", value_parser = When::parse)]
    pub(super) until: Option<When>,

    /// Time zone of days and hours, such as Europe/Berlin [default: UTC]
    #[arg(long, value_name = "ZONE", value_parser = Zone::parse)]
    pub(super) tz: Option<Zone>,
}

#[derive(Debug, Subcommand)]
pub(super) enum UsageVerb {
    /// Write single records as CSV or JSON lines
    Export(Export),
    /// Stage records: they are synced to disk when the command exits
    Stage(Stage),
    /// Consolidate staged records into batches
    Consolidate(Consolidate),
    /// Deliver all records to the receiver, once or on a schedule
    Deliver(Deliver),
    /// List the batches that are pending
    Pending(ListArgs),
    /// List files that could not be read or delivered, with the reasons
    Failed(ListArgs),
    /// Prove from the files that no record is lost or counted twice
    Verify(ListArgs),
    /// Move failed or archived batches back into the spool, to be delivered again
    Resend(Resend),
}

#[derive(Debug, clap::Args)]
#[command(after_help = EXPORT_EXAMPLES)]
pub(super) struct Export {
    #[command(flatten)]
    pub(super) period: PeriodArgs,

    /// Only records of this team; may be repeated
    #[arg(long, value_name = "NAME")]
    pub(super) team: Vec<String>,

    /// Only records of this key; may be repeated
    #[arg(long, value_name = "NAME")]
    pub(super) key: Vec<String>,

    /// Only records of this model, requested or served; may be repeated
    #[arg(long, value_name = "NAME")]
    pub(super) model: Vec<String>,

    /// csv: the fields of llmlb's records; jsonl: whole records, one per line
    #[arg(long, value_name = "FORMAT", default_value = "csv")]
    pub(super) format: ExportFormat,

    /// File to write, which is replaced when the export is complete [default: stdout]
    #[arg(short, long, value_name = "FILE")]
    pub(super) output: Option<PathBuf>,
}

/// Format of exported records.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum ExportFormat {
    Csv,
    Jsonl,
}

#[derive(Debug, clap::Args)]
pub(super) struct Stage {
    /// Files with one JSON object per line; a .json file holds a single object in any layout
    /// [default: stdin, also written -]
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
    /// Maximum number of records in a batch
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = batch_size)]
    pub(super) batch_size: usize,
}

#[derive(Debug, clap::Args)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "each bool is a flag of the command line"
)]
pub(super) struct Deliver {
    /// URL of the receiver [default: usage.url of llmlb.toml, LLMLB_USAGE_URL]
    #[arg(long, value_name = "URL")]
    pub(super) to: Option<String>,

    /// Move the batches to archive/ instead of delivering them
    #[arg(long, conflicts_with = "to")]
    pub(super) archive: bool,

    /// Replace the destination that the data directory is bound to
    #[arg(long)]
    pub(super) change_destination: bool,

    /// Deliver at this interval, until SIGTERM or Ctrl-C
    #[arg(long, value_name = "TIME", value_parser = every)]
    pub(super) every: Option<Duration>,

    /// Retry failed batches at once, unless the receiver sent Retry-After
    #[arg(long)]
    pub(super) now: bool,

    #[command(flatten)]
    pub(super) batches: Batches,

    /// File with the receiver's bearer token [default: the variable of usage.token_env,
    /// LLMLB_USAGE_TOKEN]
    #[arg(long, value_name = "FILE")]
    pub(super) token_file: Option<PathBuf>,

    /// Maximum duration of a delivery attempt
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = timeout)]
    pub(super) timeout: Duration,

    /// Maximum wait between attempts, also for the receiver's Retry-After
    #[arg(long, value_name = "TIME", default_value = "1h", value_parser = wait)]
    pub(super) max_wait: Duration,

    /// Move a batch to failed/ after this many failed rounds, if --give-up-after has passed too
    #[arg(long, value_name = "N", default_value_t = 10)]
    pub(super) give_up_rounds: u32,

    /// Move a batch to failed/ after this time, if --give-up-rounds is reached too
    #[arg(long, value_name = "TIME", default_value = "7d", value_parser = wait)]
    pub(super) give_up_after: Duration,

    /// Treat 409 as a rejection, not as confirmation that the receiver has the batch
    #[arg(long)]
    pub(super) conflict_is_failure: bool,

    /// Allow http:// to other machines: the network can read records and token
    #[arg(long)]
    pub(super) allow_http: bool,

    /// Format of the request body: json, or cloudevents (for OpenMeter) [default: usage.format, json]
    #[arg(long, value_name = "FORMAT", value_parser = Format::parse)]
    pub(super) format: Option<Format>,

    /// Print the result as JSON (docs/billing.md)
    #[arg(long, conflicts_with = "every")]
    pub(super) json: bool,
}

#[derive(Debug, clap::Args)]
pub(super) struct ListArgs {
    /// Print JSON (docs/billing.md)
    #[arg(long)]
    pub(super) json: bool,
}

#[derive(Debug, clap::Args)]
pub(super) struct Resend {
    /// Batches in failed/ or archive/, by name or path; without any, list those of failed/
    #[arg(value_name = "FILE", conflicts_with = "all")]
    pub(super) files: Vec<PathBuf>,

    /// Select all batches
    #[arg(long)]
    pub(super) all: bool,

    /// Select batches of archive/ instead of failed/
    #[arg(long)]
    pub(super) archived: bool,

    /// Only print the result; change nothing
    #[arg(long)]
    pub(super) dry_run: bool,
}

impl ReportArgs {
    /// Returns the first given flag of the report, which is `llmlb usage` without a verb. Such a
    /// flag in front of a verb is an error.
    pub(super) fn flag(&self) -> Option<&'static str> {
        let flags = [
            ("--since", self.period.since.is_some()),
            ("--until", self.period.until.is_some()),
            ("--tz", self.period.tz.is_some()),
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
        _ => Err("allowed: a number from 1 to 100000".to_owned()),
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

    fn parse(words: &str) -> Result<UsageVerb, String> {
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
            UsageVerb::Deliver(deliver) => Ok(deliver),
            other => Err(format!("{other:?}")),
        }
    }

    #[test]
    fn durations_need_a_unit() {
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
            let error = deliver(words).unwrap_err();
            assert!(error.contains("allowed: "), "{error}");
        }
    }

    #[test]
    fn deliver_has_the_documented_defaults() {
        let typed = deliver("--now").unwrap();
        assert_eq!(typed.every, None);
        assert_eq!(typed.batches.batch_size, 100);
        assert_eq!(typed.timeout, Duration::from_secs(30));
        assert_eq!(typed.max_wait, Duration::from_secs(3600));
        assert_eq!((typed.give_up_rounds, typed.give_up_after), (10, 7 * DAY));
    }

    #[test]
    fn invalid_arguments_are_rejected() {
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
    fn data_flag_is_accepted_in_front_of_and_after_the_verb() {
        for words in ["usage --data d pending", "usage pending --data d"] {
            let words = ["llmlb"].into_iter().chain(words.split(' '));
            let args::Verb::Usage(usage) = Args::try_parse_from(words).unwrap().verb else {
                panic!("another verb was parsed");
            };
            assert_eq!(usage.data.data, Some(PathBuf::from("d")));
        }
    }
}
