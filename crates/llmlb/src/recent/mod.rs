//! Requests that have finished recently, for `llmlb explain`, the dashboard and traces.
//!
//! Each worker has a ring of its own, so that no request waits for a lock that another thread holds. A ring is
//! bounded in number and in bytes: [`FinishedRequest`] shortens every text that clients or backends choose.
//! Failed requests have a ring of their own, which successful ones do not flush. Prompts and responses are
//! never kept.

mod attempt;
mod finished;
mod json;
mod ring;

pub(crate) use attempt::{Attempt, FailedAttempt, QueueTime};
pub(crate) use finished::FinishedRequest;
pub(crate) use ring::{Recent, RecentShard};
