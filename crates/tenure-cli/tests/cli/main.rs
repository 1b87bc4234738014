//! The tool as people use it: real processes, real signals, real files.
//!
//! Every test has a directory of its own, and every process that it starts is gone when it ends.
//! `support` has the tool and its owners, `process` starts programs and waits for them, `unix`
//! signals them and gives them terminals; the other modules are tests, by topic.

#![expect(
    clippy::expect_used,
    clippy::panic,
    reason = "helpers fail the test that called them"
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

#[cfg(windows)]
mod windows;
