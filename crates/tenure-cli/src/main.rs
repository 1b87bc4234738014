//! `tenure`: runs a command under a lock, shows the holders of locks, and stops them.

#![cfg_attr(all(args_without_runtime, not(test)), no_main)]

mod args;
mod commands;
mod exit;
mod keys;
mod log;
mod output;
mod sys;

use clap::Parser;

use crate::args::{Args, Verb};

/// C entry point, which bypasses the set-up of Rust's runtime. The set-up takes 0.1 ms, forgets
/// whether SIGPIPE was ignored, and opens closed standard descriptors. The command must inherit
/// SIGPIPE and closed descriptors unchanged.
#[cfg(all(args_without_runtime, not(test)))]
#[expect(unsafe_code, reason = "the C runtime calls the function of this name")]
#[unsafe(no_mangle)]
extern "C" fn main() -> std::ffi::c_int {
    sys::ignore_broken_pipes();
    real_main()
}

#[cfg(any(not(args_without_runtime), test))]
fn main() {
    #[cfg(unix)]
    sys::ignore_broken_pipes();
    let code = real_main();
    #[expect(
        clippy::disallowed_methods,
        reason = "the command's exit code may not fit into an ExitCode; no value is left to drop"
    )]
    std::process::exit(code);
}

fn real_main() -> i32 {
    #[cfg(unix)]
    if let Some(arguments) = watchdog_arguments() {
        return sys::watchdog::run(&arguments);
    }
    let args = match Args::try_parse() {
        Ok(args) => args,
        Err(error) => {
            let code = if error.use_stderr() {
                exit::USAGE
            } else {
                exit::DONE
            };
            // Printing a help text into a pipe whose reader has exited, such as `head`, is not an
            // error.
            let _ = error.print();
            let words: Vec<_> = std::env::args_os().collect();
            if code == exit::USAGE
                && words.get(1).is_some_and(|word| word == "run")
                && !words.contains(&"--".into())
            {
                output::hint(
                    "the command comes after `--`: `tenure run backup -- rsync -a /data /backup`",
                );
            }
            return code;
        }
    };
    log::install(args.verbose);
    let result = match args.verb {
        Verb::Run(run) => commands::run::run(&run, args.quiet),
        Verb::Status(status) => commands::status::status(&status),
        Verb::Stop(stop) => commands::stop::stop(&stop, args.quiet),
        Verb::Completions { shell } => commands::completions::completions(shell),
    };
    match result {
        Ok(code) => code,
        Err(failure) => {
            failure.print();
            failure.code
        }
    }
}

/// Returns the arguments of a watchdog if the wrapper started this process as one. The verb for it
/// is parsed here and not by the command line's parser, so that no help text shows it.
#[cfg(unix)]
fn watchdog_arguments() -> Option<Vec<std::ffi::OsString>> {
    let mut words = std::env::args_os().skip(1);
    (words.next()? == sys::watchdog::VERB).then(|| words.collect())
}
