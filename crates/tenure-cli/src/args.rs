//! What can be typed.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::{ArgAction, Parser, Subcommand};

use crate::exit;

const EXAMPLES: &str = "\
Examples:
  tenure run backup -- /usr/local/bin/backup      start it only if no other one runs
  tenure run --wait=60 backup -- backup --full    wait up to a minute for the other one
  tenure run --port 8080 -- my-server             one server per port
  tenure status                                   who holds what
  tenure stop backup                              stop the process that holds it, and no other

Files: locks live in `tenure` in the temporary directory; TENURE_DIR names another one.
Exit codes: 0 done, 1 refused or failed, 2 wrong usage, 3 nobody holds it (status), 75 held (run);
`run` otherwise exits with the command's own code, 128+N if signal N ended it.";

const RUN_EXAMPLES: &str = "\
Examples:
  # In a crontab: skip this run while the last one is still going.
  */5 * * * *  /usr/local/bin/tenure run --quiet -E 0 sync -- rsync -a /data backup:/data

  # Wait for at most 30 seconds, then give up with exit code 75.
  tenure run --wait=30 deploy -- ./deploy.sh

  # No name: the command line itself is the key, so the same command runs once.
  tenure run -- make world

The command inherits the lock: if `tenure` itself is killed, nobody else gets in before the command
has ended. Signals sent to `tenure` reach the command once. Under systemd, use KillMode=mixed.
TENURE_TOKEN in its environment is larger than that of every earlier owner of the key.
Exit codes: the command's own; 128+N if signal N ended it; 75 (or -E) if somebody else holds the
key; 126 and 127 if the command could not be started or found; 1 and 2 for other failures.";

const STATUS_EXAMPLES: &str = "\
Examples:
  tenure status                       every lock of this user
  tenure status backup --port 8080    these two
  tenure status --json backup | jq -r '.locks[0].pid'

States: held (verified): the process that the record names has the lock, by the kernel's word.
held (pid not visible here): its owner is in another PID namespace or on another machine.
held (another user's), held (owner unknown), suspended: as they say.
stale: a crashed owner left the file; harmless, the next owner takes it over.
unreadable: nobody holds it and the file makes no sense; harmless too.
another user's: nobody holds it. unknown: another user may hold it, and it cannot be seen from here.
A lock whose file was deleted while it is held shows only when it is asked for by name.
Exit codes: 0, or 3 if a key that was asked for is not held, 1 if that cannot be told.";

const STOP_EXAMPLES: &str = "\
Examples:
  tenure stop backup
  tenure stop --timeout 60 --force --port 8080

Only a process that is proven to be the owner is signalled: one that merely has the recorded number
now is left alone. A key that nobody holds is not an error.
Exit codes: 0 the key is free, 1 refused or still running.";

/// One owner at a time: run a command as the only one of its kind.
#[derive(Debug, Parser)]
#[command(name = "tenure", version, after_help = EXAMPLES, arg_required_else_help = true)]
#[command(disable_help_subcommand = true, max_term_width = 100)]
pub(crate) struct Args {
    #[command(subcommand)]
    pub(crate) verb: Verb,

    /// Say more on stderr
    #[arg(short, long, global = true, action = ArgAction::SetTrue, conflicts_with = "quiet")]
    pub(crate) verbose: bool,

    /// Say nothing on stderr that the exit code says too
    #[arg(short, long, global = true, action = ArgAction::SetTrue)]
    pub(crate) quiet: bool,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Verb {
    /// Run a command while holding a key
    #[command(after_help = RUN_EXAMPLES)]
    Run(Run),
    /// Show who holds what
    #[command(after_help = STATUS_EXAMPLES)]
    Status(Status),
    /// Stop the process that holds a key
    #[command(after_help = STOP_EXAMPLES)]
    Stop(Stop),
    /// Print a completion script for a shell
    ///
    /// For bash, put `source <(tenure completions bash)` into ~/.bashrc; for zsh and fish, save the
    /// script where they look for completions.
    Completions {
        /// bash, elvish, fish, powershell or zsh
        shell: clap_complete::Shell,
    },
}

#[derive(Debug, clap::Args)]
pub(crate) struct Run {
    #[command(flatten)]
    pub(crate) key: OneKey,

    /// Wait until the key is free, for at most SECS seconds if given
    #[arg(long, value_name = "SECS", num_args = 0..=1, require_equals = true, value_parser = seconds)]
    #[expect(
        clippy::option_option,
        reason = "absent, without a value, with a value: clap's own form"
    )]
    pub(crate) wait: Option<Option<Duration>>,

    /// Exit with CODE instead of 75 if somebody else holds the key
    #[arg(short = 'E', long, value_name = "CODE", default_value_t = exit::HELD)]
    pub(crate) conflict_exit_code: u8,

    /// The command and its arguments
    #[arg(last = true, required = true, value_name = "CMD")]
    pub(crate) command: Vec<OsString>,
}

#[derive(Debug, clap::Args)]
pub(crate) struct Status {
    /// Keys by name
    #[arg(value_name = "NAME")]
    pub(crate) names: Vec<String>,

    /// The key of a port
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    pub(crate) port: Vec<u16>,

    /// Exactly this lock file
    #[arg(long, value_name = "PATH")]
    pub(crate) file: Vec<PathBuf>,

    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, clap::Args)]
pub(crate) struct Stop {
    #[command(flatten)]
    pub(crate) key: OneKey,

    /// How long to wait for the owner to end
    #[arg(long, value_name = "SECS", default_value = "10", value_parser = seconds)]
    pub(crate) timeout: Duration,

    /// Kill the owner if it has not ended by then
    #[arg(long)]
    pub(crate) force: bool,
}

#[derive(Debug, clap::Args)]
#[group(multiple = false)]
pub(crate) struct OneKey {
    /// A name: at most 100 of a-z A-Z 0-9 . _ -
    #[arg(value_name = "NAME")]
    pub(crate) name: Option<String>,

    /// A port number, as a key of its own; no socket is opened
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    pub(crate) port: Option<u16>,

    /// Exactly this lock file. Its content is replaced, and it is removed afterwards
    #[arg(long, value_name = "PATH")]
    pub(crate) file: Option<PathBuf>,
}

fn seconds(text: &str) -> Result<Duration, String> {
    let number: f64 = text
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

    #[test]
    fn what_follows_the_dashes_is_never_ours() {
        let args =
            Args::try_parse_from(["tenure", "run", "n", "--", "ls", "--port", "-q", "--"]).unwrap();
        let Verb::Run(run) = args.verb else {
            panic!("not run");
        };
        assert_eq!(run.command, ["ls", "--port", "-q", "--"]);
        assert!(!args.quiet && run.key.port.is_none());
    }

    #[test]
    fn wait_takes_its_value_only_with_an_equals_sign() {
        let parse = |line: &str| Args::try_parse_from(line.split(' '));
        let wait = |line: &str| match parse(line).unwrap().verb {
            Verb::Run(run) => run.wait,
            _ => None,
        };
        assert_eq!(wait("tenure run n -- true"), None);
        assert_eq!(wait("tenure run --wait n -- true"), Some(None));
        assert_eq!(
            wait("tenure run --wait=1.5 n -- true"),
            Some(Some(Duration::from_millis(1500)))
        );
        assert!(parse("tenure run --wait=-1 n -- true").is_err());
        assert!(parse("tenure run --wait=soon n -- true").is_err());
        assert!(parse("tenure run --wait=1e300 n -- true").is_err());
        assert!(parse("tenure run n --port 1 -- true").is_err());
        assert!(parse("tenure run n true").is_err());
        assert!(parse("tenure run n").is_err());
    }
}
