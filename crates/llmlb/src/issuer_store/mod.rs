//! Backends of issued ids in Redis, so that every server of a fleet routes a request to the backend
//! that issued its id (`fleet.store`, L6).

#[cfg(not(feature = "redis"))]
mod absent;
#[cfg(feature = "redis")]
mod redis;

#[cfg(not(feature = "redis"))]
pub(crate) use absent::IssuerStore;
#[cfg(feature = "redis")]
pub(crate) use redis::{IssuerStore, open};
