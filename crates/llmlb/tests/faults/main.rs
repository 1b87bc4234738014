//! `llmlb usage` as a whole, against everything that can go wrong around it.
//!
//! `receiver` takes batches over HTTP and has every fault a receiver can have; `world` is a data
//! directory with producers and deliverers that are real processes and die at any moment;
//! `reckoning` asks in the end what became of every record. The other modules are tests, by what
//! goes wrong. Each prints one line of counts.
//!
//! `FAULT_SECONDS` is how long each storm lasts (3), `FAULT_SEED` which one it is,
//! `FAULT_ROUNDS` how many rounds the consolidators fight (20), `FAULT_BACKLOG` how many records
//! wait in the test of a long backlog (none: it is skipped). `scripts/prove-spool` runs the long
//! versions.

#![cfg(target_os = "linux")]
#![expect(
    clippy::panic,
    clippy::print_stdout,
    clippy::unwrap_used,
    reason = "helpers fail the test that called them; each case prints its counts"
)]

mod books;
mod elsewhere;
mod fault;
mod process;
mod producer;
mod receiver;
mod reckoning;
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
mod receiver_itself;
mod silence;
