//! Command line of `tenure`: verbs, options and their help texts.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::{ArgAction, Parser, Subcommand};

use crate::exit;

const EXAMPLES: &str = "\
Examples:
  tenure run backup -- /usr/local/bin/backup      run it unless the key `backup` is held
  tenure run --wait=60 backup -- backup --full    wait up to a minute for the key
  tenure run --port 8080 -- my-server             run one server for each port
  tenure status                                   list the locks and their owners
  tenure stop backup                              stop the owner, and no other process
  tenure run --store redis://db backup -- backup  one owner among all machines that use the store

Files: lock files are stored in `tenure` in the temporary directory, or in TENURE_DIR if it is set.
Stores: with --store URL or TENURE_STORE, keys are held as leases that several machines share:
  redis://[USER:PASSWORD@]HOST[:PORT][/DB], rediss:// with TLS
  etcd://HOST:PORT[,HOST:PORT..][/PREFIX], etcds:// with TLS
  dynamodb://TABLE?region=REGION
Other users of this machine can see the arguments of a command: put a URL with a password into
TENURE_STORE. It applies to all keys except those of --file; an empty text stands for lock files.
Exit codes: 0 success, 1 refused or failed, 2 wrong usage, 3 not held (status), 75 held (run);
`run` otherwise exits with the command's own code, or 128+N if signal N ended it.";

const RUN_EXAMPLES: &str = "\
Examples:
  # In a crontab: skip this run while the last one is still running.
  */5 * * * *  /usr/local/bin/tenure run --quiet -E 0 sync -- rsync -a /data backup:/data

  # Wait for at most 30 seconds, then exit with code 75.
  tenure run --wait=30 deploy -- ./deploy.sh

  # Without a name the command line itself is the key: the same command does not run twice.
  tenure run -- make world

  # One import among all machines, with a lease that ends 30 s after a crash.
  tenure run --store redis://db.example --ttl 30 import -- ./import.sh

The command inherits the lock: if `tenure` itself is killed, the key stays held until the command
exits. Signals sent to `tenure` reach the command once. Under systemd, use KillMode=mixed.
TENURE_TOKEN in its environment is a fencing token, larger than that of every earlier owner.

With --store the key is a lease, which is renewed while the command runs. A password in --store is
visible to other users of this machine: put such a URL into TENURE_STORE. The command and all its
descendants are ended before the lease can pass to another owner, also if `tenure` is killed or
stopped (SIGSTOP, Ctrl-Z) or the store is unreachable: SIGTERM first, SIGKILL when the lease ends.
When the command exits, its remaining descendants are ended too, and then the lease is released.
Only the token stops late writes of commands that change their user, of processes that another
daemon starts for the command, and of a command whose `tenure` and watchdog process are stopped or
killed at the same time. On Windows the command ends with `tenure`, but not while `tenure` is
suspended; on macOS descendants that leave the command's process group are not ended.

Exit codes: the command's own; 128+N if signal N ended it; 75 (or -E) if another process holds the
key; 126 if the command could not be started, 127 if it was not found; 1 if the store is unreachable
or the lease was lost; 1 and 2 for other failures.";

const STATUS_EXAMPLES: &str = "\
Examples:
  tenure status                       all lock files
  tenure status backup --port 8080    these two keys
  tenure status --json backup | jq -r '.locks[0].pid'
  tenure status --store redis://db    all leases in a store

States:
  held (lease)                 a store attests the lease; its owner may be on any machine
  held (verified)              the kernel confirms the owner that the lock record names
  held (pid not visible here)  the owner is in another PID namespace or on another machine
  held (another user's)        the lock file belongs to another user and cannot be read
  held (owner unknown)         held, but no process could be proven to be the owner
  .. suspended                 the owner is stopped (SIGSTOP); it keeps the lock
  .. file gone                 the lock file was deleted or replaced while it was held
  stale                        not held; a crashed owner left the file, the next owner takes it over
  unreadable                   not held; no lock record in the file, the next owner takes it over
  another user's               not held; the lock file belongs to another user
  unknown                      another user may hold it, and the kernel does not show it here
  unusable                     the path is not a lock file; remove it before the key can be acquired
A key whose lock file was deleted while it was held is shown only if it is named.
Exit codes: 0 success, 3 if a named key is not held, 1 if that cannot be determined.";

const STOP_EXAMPLES: &str = "\
Examples:
  tenure stop backup
  tenure stop --timeout 60 --force --port 8080

Only a process that is proven to be the owner is signalled: another process that now has the
recorded pid is not. Stopping a key that is not held is not an error.

With --store, a request to stop is stored next to the lease. Its owner, on any machine, reads the
request at the next renewal, within a third of the TTL, and no process is signalled from here.
Exit codes: 0 the key is free, 1 refused or still running.";

/// Run a command under a lock, so that only one instance runs at a time
#[derive(Debug, Parser)]
#[command(name = "tenure", version, after_help = EXAMPLES, arg_required_else_help = true)]
#[command(disable_help_subcommand = true, max_term_width = 100)]
pub(crate) struct Args {
    #[command(subcommand)]
    pub(crate) verb: Verb,

    /// Log acquire and release on stderr
    #[arg(short, long, global = true, action = ArgAction::SetTrue, conflicts_with = "quiet")]
    #[arg(display_order = 900)]
    pub(crate) verbose: bool,

    /// Do not print messages that the exit code implies
    #[arg(short, long, global = true, action = ArgAction::SetTrue, display_order = 901)]
    pub(crate) quiet: bool,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Verb {
    /// Run a command while holding a key
    #[command(after_help = RUN_EXAMPLES)]
    Run(Run),
    /// Show locks and their owners
    #[command(after_help = STATUS_EXAMPLES)]
    Status(Status),
    /// Stop the process that holds a key
    #[command(after_help = STOP_EXAMPLES)]
    Stop(Stop),
    /// Print a completion script for a shell
    ///
    /// For bash, put `source <(tenure completions bash)` into ~/.bashrc; for zsh and fish, save the
    /// script in a directory that they search for completions.
    Completions {
        /// bash, elvish, fish, powershell or zsh
        shell: clap_complete::Shell,
    },
}

#[derive(Debug, clap::Args)]
pub(crate) struct Run {
    #[command(flatten)]
    pub(crate) key: OneKey,

    /// Hold the key as a lease in the store at URL [env: TENURE_STORE]
    #[arg(long, value_name = "URL", conflicts_with = "file")]
    pub(crate) store: Option<String>,

    /// Time after which the lease ends unless it is renewed: 1 second to 24 hours [default: 15]
    #[arg(long, value_name = "SECS", value_parser = seconds)]
    pub(crate) ttl: Option<Duration>,

    /// Wait until the key is free, for at most SECS seconds if given
    #[arg(long, value_name = "SECS", num_args = 0..=1, require_equals = true, value_parser = seconds)]
    #[expect(
        clippy::option_option,
        reason = "clap distinguishes no flag, a flag without a value and a flag with a value this way"
    )]
    pub(crate) wait: Option<Option<Duration>>,

    /// Exit with CODE instead of 75 if another process holds the key
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

    /// Keys by port number
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    pub(crate) port: Vec<u16>,

    /// Keys by the path of the lock file
    #[arg(long, value_name = "PATH")]
    pub(crate) file: Vec<PathBuf>,

    /// Show the leases in the store at URL [env: TENURE_STORE]
    #[arg(long, value_name = "URL", conflicts_with = "file")]
    pub(crate) store: Option<String>,

    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, clap::Args)]
pub(crate) struct Stop {
    #[command(flatten)]
    pub(crate) key: OneKey,

    /// Stop the owner of a lease in the store at URL [env: TENURE_STORE]
    #[arg(long, value_name = "URL", conflicts_with = "file")]
    pub(crate) store: Option<String>,

    /// Wait for the owner to exit for at most SECS seconds
    #[arg(long, value_name = "SECS", default_value = "10", value_parser = seconds)]
    pub(crate) timeout: Duration,

    /// Kill the owner if it has not exited within the timeout; not with --store
    #[arg(long)]
    pub(crate) force: bool,
}

#[derive(Debug, clap::Args)]
#[group(multiple = false)]
pub(crate) struct OneKey {
    /// A name: at most 100 of a-z A-Z 0-9 . _ -
    #[arg(value_name = "NAME")]
    pub(crate) name: Option<String>,

    /// A port number as the key; no socket is opened
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    pub(crate) port: Option<u16>,

    /// Path of the lock file. Its content is replaced, and the file is removed on release
    #[arg(long, value_name = "PATH")]
    pub(crate) file: Option<PathBuf>,
}

fn seconds(text: &str) -> Result<Duration, String> {
    let number: f64 = text
        .parse()
        .map_err(|_| format!("`{text}` is not a number of seconds"))?;
    Duration::try_from_secs_f64(number)
        .map_err(|_| format!("the number of seconds `{text}` is negative or too large"))
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn clap_accepts_the_definitions() {
        Args::command().debug_assert();
    }

    #[test]
    fn words_after_the_dashes_belong_to_the_command() {
        let args =
            Args::try_parse_from(["tenure", "run", "n", "--", "ls", "--port", "-q", "--"]).unwrap();
        let Verb::Run(run) = args.verb else {
            panic!("not run");
        };
        assert_eq!(run.command, ["ls", "--port", "-q", "--"]);
        assert!(!args.quiet && run.key.port.is_none());
    }

    #[test]
    fn wait_has_a_value_only_with_an_equals_sign() {
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
