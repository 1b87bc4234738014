//! Tests of whole data directories: crashes and faults at every disk operation, and their effect on
//! the records.

#![expect(clippy::unwrap_used, reason = "helpers fail the test that called them")]

mod consolidation;
mod crash_recovery;
mod crashing_disk;
mod delivery;
mod destination;
mod disk_faults;
mod failing_disk;
mod fake_receiver;
mod fence;
mod full_disk;
mod grouping;
mod journals;
mod restored_copy;
mod resumed_consolidation;
mod runner;
mod separate_file_systems;
mod tally;
mod test_data_dir;
mod unreadable_files;
mod upgrade;
mod verify;
