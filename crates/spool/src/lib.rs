//! Nothing lost, nothing counted twice.
//!
//! Producers stage records on disk; one consolidator folds a fixed snapshot of them into batches;
//! batches wait until an external API has accepted them.

mod disk;
mod entry;
mod error;
mod line;
mod record;
mod staging;
mod sys;

pub use error::Error;
pub use record::{BadRecord, Record};
pub use staging::{Durability, Staging};
