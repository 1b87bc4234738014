//! Metrics of the server: counts and times of finished requests, and the format of the page `/metrics`.
//!
//! 1. [`worker`] counts the requests of one worker in a table of its own, so that workers do not contend;
//! 2. [`labels`] bounds the values of labels that clients and operators choose;
//! 3. [`histogram`] counts times in buckets;
//! 4. [`catalog`] defines every metric, with the text that docs/metrics.md has too;
//! 5. [`exposition`] writes the page as Prometheus text or OpenMetrics, and [`format`] negotiates which.
//!
//! `server/metrics.rs` adds the state of the server to the page: backends, queue, limits, delivery.

pub(crate) mod catalog;
mod exposition;
mod format;
mod histogram;
mod labels;
mod registry;
#[cfg(test)]
mod tests;
mod worker;

pub(crate) use exposition::{Exposition, Number};
pub(crate) use format::Format;
pub(crate) use labels::sanitized;
pub(crate) use registry::Metrics;
pub(crate) use worker::{FinishedRequest, ModelLabel, WorkerMetrics};
