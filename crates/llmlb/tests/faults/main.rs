//! `llmlb usage` with faults of its receiver, its disk, its clock and its processes.
//!
//! `receiver` receives batches over HTTP and has every fault of a receiver. `world` is a data directory
//! with producers and deliverers, which are processes that are killed at any moment. `audit` checks
//! in the end that every record was billed once. The other modules are tests, by fault. Each test
//! prints one line of counts.
//!
//! Settings in the environment: `FAULT_SECONDS` is the duration of each storm (3), `FAULT_SEED` selects
//! its faults, `FAULT_ROUNDS` is the number of rounds with eight consolidators (20), and `FAULT_BACKLOG`
//! is the number of records in the test of a long backlog (without it the test is skipped).
//! `scripts/prove-spool` runs the long versions.

#![cfg(target_os = "linux")]
#![expect(
    clippy::panic,
    clippy::print_stdout,
    clippy::unwrap_used,
    reason = "helpers fail the test that called them; each test prints its counts"
)]

mod audit;
mod billing;
mod fault;
mod mount_namespace;
mod process;
mod producer;
mod receiver;
mod sample;
mod world;

mod backlog;
mod clock;
mod consolidators;
mod full_disk;
mod junk;
mod kill_nine;
mod locks;
mod poison;
mod read_only;
mod receiver_tests;
mod retry_after;
