//! Durable staging and delivery of records. No record is lost, and no record is counted twice.
//!
//! Producers stage records on disk. One consolidator at a time writes a fixed snapshot of them into
//! batches. Batches stay on disk until an external API has accepted them.

mod backlog;
mod batch;
mod cancel;
mod consolidate;
mod data_dir;
mod delivery;
mod destination;
mod disk;
mod entry;
mod entry_journal;
mod entry_reader;
mod entry_records;
mod error;
mod export;
mod fence;
mod fields;
mod files;
mod find;
mod fingerprint;
#[cfg(any(test, fuzzing))]
#[doc(hidden)]
pub mod fuzz;
#[cfg(feature = "http")]
mod http;
mod journal;
mod known_ids;
mod line;
mod lines;
mod manager;
mod quarantine;
mod record;
mod record_files;
mod recover;
mod reserve;
mod run;
mod schedule;
mod snapshot;
mod staged;
mod staging;
mod staging_lock;
mod sys;
mod tally;
#[cfg(all(test, target_os = "linux"))]
mod tests;
mod time;
mod totals;
mod unreadable;
mod verify;

pub use batch::{Batch, Part};
pub use cancel::Cancel;
pub use consolidate::{Consolidated, Consolidator, Options, consolidate};
pub use delivery::{
    Answer, Delivered, DeliveryLock, DeliveryOptions, Progress, RunError, Sink, Watch,
};
pub use destination::{ChangedDestination, change_destination, claim_destination, destination};
pub use error::Error;
pub use export::{Exported, MissingRecords, export, tally_records};
pub use fence::Fence;
pub use find::{FoundRecord, find};
#[cfg(feature = "http")]
pub use http::{CloudEvents, Format, Http, HttpError, HttpOptions, Token};
pub use manager::{Failed, FileTotals, Keep, KeptIn, Pause, PendingBatch, SpoolManager};
pub use record::{BadRecord, Record};
pub use record_files::Place;
pub use run::{Destination, Run, Runner, run};
pub use schedule::{Schedule, Tick};
pub use staged::{Staged, staged};
pub use staging::{Durability, Staging};
pub use staging_lock::{LockError, LockRecord, StagingLock};
pub use tally::{ExactRow, Tally, TallyRow, tally, tally_by_hour};
pub use totals::Grouping;
pub use verify::{Books, Busy, Problem, verify, verify_changing};

/// Compiles and runs the example of the README as a doc test.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
