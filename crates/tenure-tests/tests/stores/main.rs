//! Tests of each lease store against its real server, through the public API.
#![cfg(unix)]
#![cfg_attr(
    feature = "etcd",
    expect(
        clippy::unwrap_used,
        reason = "an error in a helper must fail its test"
    )
)]

#[cfg(feature = "etcd")]
mod common;
#[cfg(feature = "etcd")]
mod etcd;
mod servers;
