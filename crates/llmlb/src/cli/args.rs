//! The words of the command line.

use std::path::PathBuf;
use std::time::Duration;

use clap::{ArgAction, Parser, Subcommand};

use super::usage::Usage;

const EXAMPLES: &str = "\
Examples:
  llmlb serve --demo                               try it: nothing else is needed
  llmlb serve                                      use the LLM servers found on this machine
  llmlb serve --backend http://10.0.0.5:8000 --backend http://10.0.0.6:8000
  llmlb status                                     which servers run, and how they are
  llmlb stop -p 32768                              let its requests end, then stop it
  llmlb usage --since 7d --by day,model            how much was used, and of what
  llmlb usage deliver --to URL                     send usage records, each exactly once

Settings: llmlb.toml in the current directory, then LLMLB_* in the environment, then flags.
Exit codes: 0 done, 1 refused or failed, 2 wrong usage, 3 not running (status -p).";

/// One OpenAI-compatible endpoint before many LLM servers, one server per port.
#[derive(Debug, Parser)]
#[command(name = "llmlb", version, after_help = EXAMPLES, arg_required_else_help = true)]
#[command(max_term_width = 100)]
pub(super) struct Args {
    #[command(subcommand)]
    pub(super) verb: Verb,

    /// Say more on stderr: what goes on inside, such as probes and locks
    #[arg(short, long, global = true, action = ArgAction::SetTrue, conflicts_with = "quiet", display_order = 900)]
    pub(super) verbose: bool,

    /// Say nothing on stderr but warnings and errors
    #[arg(short, long, global = true, action = ArgAction::SetTrue, display_order = 901)]
    pub(super) quiet: bool,
}

#[derive(Debug, Subcommand)]
pub(super) enum Verb {
    /// Run the server of a port, in the foreground
    Serve(Serve),
    /// Stop the server of a port: its requests end first
    Stop(Stop),
    /// Show which servers run, and how they are
    Status(Status),
    /// Check the configuration without starting anything
    Check(Check),
    /// Show what was used; stage usage records, deliver them, and check the books
    Usage(Usage),
    /// Print a completion script for a shell
    Completions {
        /// bash, elvish, fish, powershell or zsh
        shell: clap_complete::Shell,
    },
}

#[derive(Debug, clap::Args)]
pub(super) struct Serve {
    /// Port to serve on; 0 takes any free one [default: 32768]
    #[arg(short, long, value_name = "PORT")]
    pub(super) port: Option<u16>,

    /// Address to serve on [default: 127.0.0.1]
    #[arg(short = 'H', long, value_name = "HOST")]
    pub(super) host: Option<String>,

    /// Configuration file [default: llmlb.toml, if there is one]
    #[arg(long, value_name = "FILE")]
    pub(super) config: Option<PathBuf>,

    /// Use the file although other users can write it
    #[arg(long, requires = "config")]
    pub(super) allow_shared_config: bool,

    /// An LLM server to send requests to; may be given several times
    #[arg(long = "backend", value_name = "URL")]
    pub(super) backends: Vec<String>,

    /// Use built-in backends that make up their answers
    #[arg(long, conflicts_with = "backends")]
    pub(super) demo: bool,

    /// Serve on an address that other machines reach, although anyone may then use it
    #[arg(long)]
    pub(super) allow_public: bool,
}

#[derive(Debug, clap::Args)]
pub(super) struct Stop {
    /// The server's port
    #[arg(short, long, value_name = "PORT", value_parser = clap::value_parser!(u16).range(1..))]
    pub(super) port: Option<u16>,

    /// How long to wait [default: the server's drain timeout and 5 seconds]
    #[arg(long, value_name = "SECS", value_parser = seconds)]
    pub(super) timeout: Option<Duration>,

    /// Kill the server if it has not ended by then; `--timeout 0 --force` kills it at once
    #[arg(long)]
    pub(super) force: bool,
}

#[derive(Debug, clap::Args)]
pub(super) struct Status {
    /// Only the server of this port
    #[arg(short, long, value_name = "PORT", value_parser = clap::value_parser!(u16).range(1..))]
    pub(super) port: Option<u16>,

    /// Print JSON (docs/status-json.md)
    #[arg(long)]
    pub(super) json: bool,
}

#[derive(Debug, clap::Args)]
pub(super) struct Check {
    /// Configuration file [default: llmlb.toml, if there is one]
    #[arg(long, value_name = "FILE")]
    pub(super) config: Option<PathBuf>,

    /// Use the file although other users can write it
    #[arg(long, requires = "config")]
    pub(super) allow_shared_config: bool,
}

fn seconds(text: &str) -> Result<Duration, String> {
    let number: f64 = text
        .strip_suffix('s')
        .unwrap_or(text)
        .parse()
        .map_err(|_| format!("`{text}` is not a number of seconds"))?;
    Duration::try_from_secs_f64(number)
        .map_err(|_| format!("`{text}` is not a number of seconds that one can wait"))
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_definitions_are_sound() {
        Args::command().debug_assert();
    }
}
