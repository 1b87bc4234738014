//! Stores in Redis which backend issued which id, so that every server of a fleet routes a request
//! with an id to the backend that issued the id (`fleet.store`, L6).

#[cfg(not(feature = "redis"))]
mod absent;
#[cfg(feature = "redis")]
mod redis;

#[cfg(not(feature = "redis"))]
pub(crate) use absent::IssuerStore;
#[cfg(feature = "redis")]
pub(crate) use redis::{IssuerStore, open};
