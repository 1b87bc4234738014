//! Snapshots of a running server, for `/dashboard` and `llmlb top`: docs/status-json.md.
//!
//! 1. [`averages`] samples the counters once per second, so that moving averages exist when a viewer comes;
//! 2. [`files`] reads what only files know, usage by hour and the books, on a thread of its own;
//! 3. [`build`] makes a snapshot from both and from the state of the server;
//! 4. [`publish`] makes one at most once per second, and only for viewers, who share its bytes.

mod averages;
mod build;
mod files;
pub(crate) mod format;
mod publish;
mod sources;
mod usage;

pub(crate) use publish::{MAX_VIEWERS, SnapshotThreads, Snapshots, Viewer};
pub(crate) use sources::Sources;
