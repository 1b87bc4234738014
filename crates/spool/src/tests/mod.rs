//! Tests of the whole: crashes at every act, and what is left of the data.

#![expect(clippy::unwrap_used, reason = "helpers fail the test that called them")]

mod apart;
mod crash;
mod crashing_disk;
mod delivering;
mod failing;
mod full_disk;
mod journals;
mod owning;
mod place;
mod reading;
mod receiver;
mod restoring;
mod resuming;
mod running;
mod sick_disk;
mod tallying;
mod upgrading;
mod verifying;
