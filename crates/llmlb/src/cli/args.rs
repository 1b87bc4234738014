//! Command line arguments of every verb but `key` and `usage`.

use std::path::PathBuf;
use std::time::Duration;

use clap::{ArgAction, Parser, Subcommand};

use super::data_args::DataArgs;
use super::key::KeyArgs;
use super::usage::UsageArgs;

const EXAMPLES: &str = "\
Examples:
  llmlb serve --demo                               try it without any LLM server
  llmlb serve                                      use the LLM servers found on this machine
  llmlb serve --backend http://10.0.0.5:8000 --backend http://10.0.0.6:8000
  llmlb status                                     list running servers with their health
  llmlb top                                        watch backends, requests and usage in a terminal
  llmlb stop -p 32768                              drain the server, then stop it
  llmlb explain REQUEST_ID                         show why a request went to its backend
  llmlb key add alice --rpm 60                     create an API key; all clients then need one
  llmlb usage --since 7d --by day,model            report tokens by day and model
  llmlb usage deliver --to URL                     deliver usage records, each exactly once

Settings: llmlb.toml in the current directory, then LLMLB_* in the environment, then flags.
Exit codes: 0 done, 1 refused or failed, 2 wrong usage, 3 not running (status -p, top).";

/// OpenAI-compatible load balancer in front of many LLM servers, one instance per port.
#[derive(Debug, Parser)]
#[command(name = "llmlb", version, after_help = EXAMPLES, arg_required_else_help = true)]
#[command(max_term_width = 100)]
pub(super) struct Args {
    #[command(subcommand)]
    pub(super) verb: Verb,

    /// Log debug messages to stderr too, such as probes and locks
    #[arg(short, long, global = true, action = ArgAction::SetTrue, conflicts_with = "quiet", display_order = 900)]
    pub(super) verbose: bool,

    /// Log only warnings and errors to stderr
    #[arg(short, long, global = true, action = ArgAction::SetTrue, display_order = 901)]
    pub(super) quiet: bool,
}

#[derive(Debug, Subcommand)]
pub(super) enum Verb {
    /// Run a server on a port, in the foreground
    Serve(Serve),
    /// Drain and stop the server on a port
    Stop(Stop),
    /// List running servers with their health
    Status(Status),
    /// Show why a request went to its backend, and what it took
    Explain(Explain),
    /// Show the state of a running server in a terminal, refreshed every second
    #[cfg(feature = "top")]
    Top(Top),
    /// Check the configuration without starting a server
    Check(Check),
    /// Create, list, revoke and rotate the API keys of clients
    Key(KeyArgs),
    /// Report usage; stage, deliver and verify usage records
    Usage(Box<UsageArgs>),
    /// Print a completion script for a shell
    Completions {
        /// bash, elvish, fish, powershell or zsh
        shell: clap_complete::Shell,
    },
}

#[derive(Debug, clap::Args)]
pub(super) struct Serve {
    /// Port to listen on; 0 selects a free port [default: 32768]
    #[arg(short, long, value_name = "PORT")]
    pub(super) port: Option<u16>,

    /// Address to listen on [default: 127.0.0.1]
    #[arg(short = 'H', long, value_name = "HOST")]
    pub(super) host: Option<String>,

    /// Configuration file [default: llmlb.toml, if there is one]
    #[arg(long, value_name = "FILE")]
    pub(super) config: Option<PathBuf>,

    /// Accept a configuration file that other users can write
    #[arg(long, requires = "config")]
    pub(super) allow_shared_config: bool,

    /// URL of an LLM server to balance; may be repeated
    #[arg(long = "backend", value_name = "URL")]
    pub(super) backends: Vec<String>,

    /// Use built-in backends that generate sample responses, without llmlb.toml
    #[arg(long, conflicts_with = "backends")]
    pub(super) demo: bool,

    /// Allow an address that other machines reach even without API keys: every client that reaches
    /// it can use the backends
    #[arg(long)]
    pub(super) allow_public: bool,

    /// Serve https with this certificate chain (PEM)
    #[arg(long, value_name = "FILE")]
    pub(super) tls_cert: Option<String>,

    /// Private key of --tls-cert (PEM)
    #[arg(long, value_name = "FILE")]
    pub(super) tls_key: Option<String>,
}

#[derive(Debug, clap::Args)]
pub(super) struct Stop {
    /// Port of the server
    #[arg(short, long, value_name = "PORT", value_parser = clap::value_parser!(u16).range(1..))]
    pub(super) port: Option<u16>,

    /// Maximum time to wait for the server to exit [default: its drain timeout plus 5 seconds]
    #[arg(long, value_name = "SECS", value_parser = seconds)]
    pub(super) timeout: Option<Duration>,

    /// Kill the server if it has not exited after --timeout; `--timeout 0 --force` kills it at once
    #[arg(long)]
    pub(super) force: bool,
}

#[derive(Debug, clap::Args)]
pub(super) struct Status {
    /// Show only the server on this port
    #[arg(short, long, value_name = "PORT", value_parser = clap::value_parser!(u16).range(1..))]
    pub(super) port: Option<u16>,

    /// Print JSON (docs/status-json.md)
    #[arg(long)]
    pub(super) json: bool,
}

#[cfg(feature = "top")]
#[derive(Debug, clap::Args)]
pub(super) struct Top {
    /// Port of a server on this machine [default: that of the only server]
    #[arg(short, long, value_name = "PORT", value_parser = clap::value_parser!(u16).range(1..))]
    pub(super) port: Option<u16>,

    /// URL of a server; an API key of an admin is read from LLMLB_ADMIN_KEY
    #[arg(long, value_name = "URL", conflicts_with = "port")]
    pub(super) url: Option<String>,

    /// Print the state once, as text; also if stdin or stdout is no terminal
    #[arg(long)]
    pub(super) once: bool,

    /// Print the state once, as JSON (docs/status-json.md)
    #[arg(long, conflicts_with = "once")]
    pub(super) json: bool,
}

#[derive(Debug, clap::Args)]
pub(super) struct Explain {
    /// x-request-id of the request, or the id of its usage record; without it, the last failed
    /// requests are listed
    #[arg(value_name = "REQUEST_ID")]
    pub(super) id: Option<String>,

    /// Ask only the server on this port
    #[arg(short, long, value_name = "PORT", value_parser = clap::value_parser!(u16).range(1..))]
    pub(super) port: Option<u16>,

    /// Print JSON (docs/troubleshooting.md)
    #[arg(long)]
    pub(super) json: bool,

    #[command(flatten)]
    pub(super) data: DataArgs,
}

#[derive(Debug, clap::Args)]
pub(super) struct Check {
    /// Configuration file [default: llmlb.toml, if there is one]
    #[arg(long, value_name = "FILE")]
    pub(super) config: Option<PathBuf>,

    /// Contact the backends and the receiver of usage records too
    #[arg(long)]
    pub(super) ask: bool,

    /// Print a JSON Schema of the configuration file for editors, and check nothing
    #[arg(long, conflicts_with_all = ["config", "ask", "allow_shared_config"])]
    pub(super) schema: bool,

    /// Accept a configuration file that other users can write
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
        .map_err(|_| format!("`{text}` is not a number of seconds from 0 to 1.8e19"))
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn argument_definitions_are_valid() {
        Args::command().debug_assert();
    }
}
