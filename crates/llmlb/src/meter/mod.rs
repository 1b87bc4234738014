//! What a request took: read from its answer as it passes, and written down.
//!
//! But for the [`store`], and the file that tells of its [`loss`], nothing here waits, asks the time or
//! opens anything. Frames go in and come out.
//!
//! 1. [`usage_option`] asks the backend for usage where the client did not;
//! 2. [`usage_tap`] looks at the answer, which is [`json`], [`sse`] or [`ndjson`], for its [`usage`];
//! 3. [`estimate`] guesses where none is told;
//! 4. [`record`] is what remains, in the [`store`].

mod commit_group;
pub(crate) mod estimate;
#[cfg(any(test, fuzzing))]
pub(crate) mod fuzz;
pub(crate) mod json;
pub(crate) mod loss;
pub(crate) mod ndjson;
pub(crate) mod record;
pub(crate) mod sse;
mod store;
pub(crate) mod usage;
pub(crate) mod usage_option;
pub(crate) mod usage_tap;

pub(crate) use commit_group::CommitGroup;
pub(crate) use store::Meter;
