//! `/metrics` of real servers: its format, its numbers, its bounds, and the files that use it. (promise L13)

#![expect(
    clippy::panic,
    clippy::unwrap_used,
    reason = "helpers fail the test that called them"
)]

mod access;
mod cardinality;
mod counts;
mod delivery;
mod files;
mod format;
mod page;
