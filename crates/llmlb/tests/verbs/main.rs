//! `llmlb stop` and `llmlb status` as users run them: the real program against real owners of
//! real locks. Every test has a lock directory of its own.

#![expect(clippy::expect_used, reason = "helpers fail the test that called them")]
#![expect(clippy::print_stdout, reason = "a stand-in prints that it is ready")]

mod support;

mod lock;
#[cfg(target_os = "linux")]
mod other_users;
#[cfg(target_os = "linux")]
mod pid_namespaces;
mod status;
#[cfg(unix)]
mod stop;
