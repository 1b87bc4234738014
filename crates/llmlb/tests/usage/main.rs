//! `llmlb usage` as users and timers run it: the real program, real files, a real receiver. Every test
//! has a data directory of its own.

#![expect(
    clippy::expect_used,
    clippy::unwrap_used,
    reason = "helpers fail the test that called them"
)]

mod support;

mod cli_arguments;
// Unix only: the tested commands of the page are those of a Unix shell.
#[cfg(unix)]
mod cli_bill;
mod cli_cloudevents;
mod cli_data_dir;
mod cli_deliver;
mod cli_example;
mod cli_export;
mod cli_failed;
mod cli_reading;
mod cli_report;
mod cli_schedule;
mod cli_secrets;
mod cli_stage;
mod cli_timezones;
mod cli_tls;
mod destinations;
mod serve_archives;
mod serve_delivers;
mod systemd;
mod two_users;
