//! The command line of `llmlb`: one verb per file.

mod args;
mod check;
mod check_ask;
mod check_machine;
mod completions;
mod data_args;
mod exit;
mod explain;
mod interrupt;
mod key;
mod log;
mod output;
mod port_conflict;
mod progress;
mod serve;
mod server_keys;
mod status;
mod status_client;
mod stop;
mod table;
mod time;
#[cfg(feature = "top")]
mod top;
mod usage;

use std::process::ExitCode;

use clap::Parser;

use args::{Args, Verb};

/// Parses the command line and runs the verb. The exit codes are documented in
/// `docs/operations.md`.
pub fn run() -> ExitCode {
    let args = match Args::try_parse() {
        Ok(args) => args,
        Err(error) => {
            // Ignore a failed print, which a closed pipe as in `llmlb --help | head -1` causes.
            let _ = error.print();
            return if error.use_stderr() {
                exit::USAGE.into()
            } else {
                exit::DONE.into()
            };
        }
    };
    let log = log::install(args.verbose, args.quiet);
    let done = match args.verb {
        Verb::Serve(serve) => serve::serve(&serve, &log),
        Verb::Stop(stop) => stop::stop(&stop, args.quiet),
        Verb::Status(status) => status::status(&status),
        #[cfg(feature = "top")]
        Verb::Top(args) => top::top(&args),
        Verb::Explain(explain) => explain::explain(&explain),
        Verb::Check(check) => check::check(&check, args.quiet),
        Verb::Key(key) => key::key(&key, args.quiet),
        Verb::Usage(usage) => usage::usage(&usage, args.quiet),
        Verb::Completions { shell } => completions::completions(shell),
    };
    // Write the queued log lines first, so that the final error message is the last line.
    drop(log);
    match done {
        Ok(code) => code.into(),
        Err(failure) => {
            failure.print();
            failure.code.into()
        }
    }
}
