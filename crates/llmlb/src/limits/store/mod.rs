//! Limits that several servers enforce together, in the store of their fleet (`fleet.store`).

#[cfg(not(feature = "redis"))]
mod absent;
#[cfg(feature = "redis")]
mod redis;
#[cfg(feature = "redis")]
mod script;

#[cfg(not(feature = "redis"))]
pub(super) use absent::LimitStore;
#[cfg(feature = "redis")]
pub(super) use redis::LimitStore;

use super::exceeded::Exceeded;
use super::key_usage::Now;
use super::rates::Rates;
use super::{Admission, TokenDemand};
use crate::config::{KeyLimits, LimitMode};

/// A request about which the store of the fleet decides, because the limits hold for all servers
/// together.
#[derive(Clone, Copy, Debug)]
pub(super) struct Question {
    pub(super) limits: KeyLimits,
    pub(super) demand: TokenDemand,
    /// Learned number of output tokens of one response, for a request that does not limit them.
    pub(super) expected: u64,
    pub(super) now: Now,
    /// `server.limits`.
    pub(super) mode: LimitMode,
}

/// Decision about a request, and what is left of its key's limits.
pub(super) type Decision = (Result<Admission, Exceeded>, Rates);
