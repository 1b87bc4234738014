//! Tests of each lease store against its real server, through the public API.
#![cfg(unix)]
#![cfg_attr(
    any(feature = "etcd", feature = "dynamodb"),
    expect(
        clippy::unwrap_used,
        reason = "an error in a helper must fail its test"
    )
)]

#[cfg(any(feature = "etcd", feature = "dynamodb"))]
mod common;
#[cfg(feature = "dynamodb")]
mod dynamodb;
#[cfg(feature = "etcd")]
mod etcd;
mod servers;
