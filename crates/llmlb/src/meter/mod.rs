//! Metering: counts the tokens of a request from its response and persists a usage record.
//!
//! 1. [`usage_option`] adds `include_usage` to a request whose client did not set it;
//! 2. [`usage_tap`] reads the response, which is [`json`], [`sse`] or [`ndjson`], to find its [`usage`];
//!    [`websocket`] reads the messages of a WebSocket;
//! 3. [`estimate`] estimates tokens that the backend did not report;
//! 4. [`record`] serializes the usage record, and [`store`] stages it;
//! 5. [`in_flight_list`] lists requests in flight, so that a killed server loses none;
//! 6. [`totals`] defines the fields by which the spool sums up the records.
//!
//! Only [`store`], [`in_flight_list`] and [`loss`] do I/O or read the clock. The other modules
//! transform bytes, so that they can be tested and fuzzed without a file system.

mod commit_group;
pub(crate) mod estimate;
#[cfg(any(test, fuzzing))]
pub(crate) mod fuzz;
pub(crate) mod in_flight_list;
pub(crate) mod json;
pub(crate) mod loss;
pub(crate) mod ndjson;
pub(crate) mod record;
pub(crate) mod sse;
mod store;
mod totals;
pub(crate) mod usage;
pub(crate) mod usage_option;
pub(crate) mod usage_tap;
pub(crate) mod websocket;

pub(crate) use commit_group::CommitGroup;
pub(crate) use store::Meter;
pub(crate) use totals::grouping;
