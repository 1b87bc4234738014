//! Nothing lost, nothing counted twice.
//!
//! Producers stage records on disk; one consolidator folds a fixed snapshot of them into batches;
//! batches wait until an external API has accepted them.

mod batch;
mod cancel;
mod consolidate;
mod data_dir;
mod delivery;
mod disk;
mod entry;
mod error;
#[cfg(feature = "http")]
mod http;
mod line;
mod manager;
mod quarantine;
mod record;
mod recover;
mod staging;
mod staging_lock;
mod sys;
#[cfg(all(test, target_os = "linux"))]
mod tests;

pub use batch::{Batch, Part};
pub use cancel::Cancel;
pub use consolidate::{Consolidated, Options, consolidate};
pub use delivery::{Answer, Sink};
pub use error::Error;
#[cfg(feature = "http")]
pub use http::{Http, HttpError, HttpOptions, Token};
pub use manager::SpoolManager;
pub use record::{BadRecord, Record};
pub use staging::{Durability, Staging};
pub use staging_lock::{LockError, LockRecord, StagingLock};

/// The README's example is compiled and run.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
