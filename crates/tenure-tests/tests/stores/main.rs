//! Tests of each lease store against its real server, through the public API.
#![cfg(unix)]

mod servers;
