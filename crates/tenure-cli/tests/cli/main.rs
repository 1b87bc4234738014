//! Tests of the command `tenure` with real processes, signals and files.
//!
//! Every test has its own directory, and every process that it starts is killed when it ends.
//! `support` has the command and its owners, `process` starts programs and waits for them, `unix`
//! sends signals and opens terminals; each other module has the tests of one topic. T1 to T12 in
//! comments are the promises in docs/promises.md.

#![expect(
    clippy::expect_used,
    clippy::panic,
    reason = "an error in a helper must fail its test"
)]

mod process;
mod support;
#[cfg(unix)]
#[expect(
    unsafe_code,
    reason = "signals and terminals have no safe wrapper in the standard library"
)]
mod unix;

mod command_line_key;
mod exit_codes;
mod held;
mod status;
mod usage;

#[cfg(unix)]
mod hostile;
#[cfg(unix)]
mod inherited;
#[cfg(unix)]
mod signals;
#[cfg(unix)]
mod status_rows;
#[cfg(unix)]
mod stop;
#[cfg(unix)]
mod stop_by_force;
#[cfg(unix)]
mod streams;
#[cfg(unix)]
mod terminal;
#[cfg(unix)]
mod wait;

#[cfg(target_os = "linux")]
mod busy_machine;
#[cfg(target_os = "linux")]
mod full_disk;
#[cfg(target_os = "linux")]
mod hostile_record;
#[cfg(target_os = "linux")]
mod lost_file;
#[cfg(target_os = "linux")]
mod other_user;
#[cfg(target_os = "linux")]
mod pid_namespaces;
#[cfg(target_os = "linux")]
mod stop_refused;

#[cfg(all(target_os = "linux", feature = "redis"))]
mod lease;
#[cfg(all(target_os = "linux", feature = "redis"))]
mod redis;
#[cfg(all(target_os = "linux", feature = "redis"))]
mod watchdog;

#[cfg(windows)]
mod windows;
