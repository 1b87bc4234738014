//! Command line arguments of `llmlb key`.

use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::time::Duration;

use clap::Subcommand;
use jiff::Timestamp;

use crate::config::{self, MAX_TOKENS, Period, span};

const EXAMPLES: &str = "\
Examples:
  llmlb key add alice                              print the secret of a new key, once
  KEY=$(llmlb key add ci --models 'llama3*' --rpm 60 --expires 30d)
  llmlb key add bob --team search --budget-tokens 5000000 --per month
  llmlb key list
  llmlb key rotate alice --grace 24h               the old secret works for another day
  llmlb key revoke alice

Once there is a key, every client needs one. Changes reach running servers within a second.
Keys can also be declared in llmlb.toml: docs/configuration.md";

const SECOND: Duration = Duration::from_secs(1);
/// Maximum time from now for an expiry or a grace period.
const LONGEST: Duration = Duration::from_secs(100 * 366 * 24 * 60 * 60);

#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES, arg_required_else_help = true)]
pub(in crate::cli) struct KeyArgs {
    /// Data directory [default: LLMLB_DATA_DIR, usage.data_dir of llmlb.toml, or llmlb in the user's
    /// data directory]
    #[arg(long, global = true, value_name = "DIR", display_order = 800)]
    pub(super) data: Option<PathBuf>,

    /// Configuration file [default: llmlb.toml, if there is one]
    #[arg(long, global = true, value_name = "FILE", display_order = 802)]
    pub(super) config: Option<PathBuf>,

    /// Accept a configuration file that other users can write
    #[arg(long, global = true, display_order = 803)]
    pub(super) allow_shared_config: bool,

    #[command(subcommand)]
    pub(super) verb: KeyVerb,
}

#[derive(Debug, Subcommand)]
pub(super) enum KeyVerb {
    /// Create a key and print its secret
    Add(Add),
    /// List all keys, without their secrets
    List(List),
    /// Revoke a key: clients that send it are rejected
    Revoke(Revoke),
    /// Replace the secret of a key, and print the new one
    Rotate(Rotate),
}

#[derive(Debug, clap::Args)]
pub(super) struct Add {
    /// Name of the key in logs and usage records
    #[arg(value_parser = name)]
    pub(super) name: String,

    /// Team in the usage records of the key
    #[arg(long, value_name = "TEAM", value_parser = name)]
    pub(super) team: Option<String>,

    /// Models and aliases that the key may use, separated by commas; a * at the end of one matches
    /// any rest [default: all]
    #[arg(long, value_name = "MODELS", value_delimiter = ',')]
    pub(super) models: Vec<String>,

    /// Maximum number of requests in any 60 seconds
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=100_000_000))]
    pub(super) rpm: Option<u32>,

    /// Maximum number of tokens, prompt and completion, in any 60 seconds
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=MAX_TOKENS))]
    pub(super) tpm: Option<u64>,

    /// Maximum number of concurrent requests
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub(super) concurrency: Option<u32>,

    /// Maximum number of tokens in each period
    #[arg(long, value_name = "N", requires = "per")]
    #[arg(value_parser = clap::value_parser!(u64).range(1..=MAX_TOKENS))]
    pub(super) budget_tokens: Option<u64>,

    /// Period of the budget: day or month (UTC)
    #[arg(long, value_name = "PERIOD", requires = "budget_tokens", value_parser = period)]
    pub(super) per: Option<Period>,

    /// Last day (2026-12-31), time (2026-12-31T18:00:00Z) or time from now (30d) [default: never]
    #[arg(long, value_name = "WHEN", value_parser = expiry)]
    pub(super) expires: Option<Timestamp>,

    /// Allow the pages about the server, such as /status, from other machines
    #[arg(long)]
    pub(super) admin: bool,
}

#[derive(Debug, clap::Args)]
pub(super) struct List {
    /// Print JSON (docs/production.md)
    #[arg(long)]
    pub(super) json: bool,
}

#[derive(Debug, clap::Args)]
pub(super) struct Revoke {
    /// Name of the key
    #[arg(value_parser = name)]
    pub(super) name: String,
}

#[derive(Debug, clap::Args)]
pub(super) struct Rotate {
    /// Name of the key
    #[arg(value_parser = name)]
    pub(super) name: String,

    /// Time for which the old secret still works, such as 24h [default: none]
    #[arg(long, value_name = "TIME", value_parser = grace)]
    pub(super) grace: Option<Duration>,
}

fn name(text: &str) -> Result<String, String> {
    if config::is_key_name(text) {
        Ok(text.to_owned())
    } else {
        Err("allowed: 1 to 64 of a-z A-Z 0-9 . _ -, not beginning with -".to_owned())
    }
}

fn period(text: &str) -> Result<Period, String> {
    let mut words = Period::WORDS.into_iter();
    let found = words.find(|(word, _)| *word == text);
    found
        .map(|(_, period)| period)
        .ok_or_else(|| "allowed: day, month".to_owned())
}

fn expiry(text: &str) -> Result<Timestamp, String> {
    let now = Timestamp::now();
    let time = match config::parse_expiry(text) {
        Some(time) => time,
        None => from_now(text, now)?,
    };
    if time <= now {
        return Err(format!("{time} has passed"));
    }
    Ok(time)
}

fn from_now(text: &str, now: Timestamp) -> Result<Timestamp, String> {
    let allowed =
        || "allowed: a date like 2026-12-31, a time like 2026-12-31T18:00:00Z, or 30d".to_owned();
    let range: RangeInclusive<Duration> = SECOND..=LONGEST;
    let span = span(text, &range).map_err(|_| allowed())?;
    now.checked_add(span).map_err(|_| allowed())
}

fn grace(text: &str) -> Result<Duration, String> {
    span(text, &(Duration::ZERO..=LONGEST))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn expiry_is_a_date_a_time_or_a_time_from_now_and_lies_ahead() {
        let now = Timestamp::now();
        let month = expiry("30d").unwrap();
        assert!(month > now + Duration::from_secs(30 * 86_400 - 1));
        assert!(month < now + Duration::from_secs(30 * 86_400 + 3600));
        assert_eq!(
            expiry("2999-12-31").unwrap().to_string(),
            "3000-01-01T00:00:00Z"
        );
        for text in [
            "2020-01-01",
            "2020-01-01T00:00:00Z",
            "0s",
            "never",
            "",
            "30",
            "999999d",
        ] {
            assert!(expiry(text).is_err(), "{text}");
        }
    }

    #[test]
    fn names_and_periods_are_checked() {
        assert!(name("alice.2").is_ok());
        assert!(name("a b").is_err());
        assert_eq!(period("month"), Ok(Period::Month));
        assert!(period("year").is_err());
    }
}
