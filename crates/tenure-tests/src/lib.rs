//! Helpers for tests with real processes: an [`Owner`] that executes requests, processes that
//! compete for a key ([`storm`], [`boot`], [`lease_storm`]), and a [`witness`] that detects two
//! owners. For lease stores: real [`servers`], a bad network ([`proxy`]), a witness that compares
//! [`intervals`], and a [`fenced`] resource.

#![expect(
    clippy::expect_used,
    clippy::missing_panics_doc,
    reason = "a helper that fails must fail its test at once"
)]

#[cfg(unix)]
pub mod boot;
#[cfg(unix)]
pub mod contenders;
#[cfg(target_os = "linux")]
pub mod disk;
#[cfg(unix)]
pub mod fenced;
#[cfg(unix)]
pub mod intervals;
#[cfg(unix)]
pub mod lease_storm;
#[cfg(unix)]
pub mod naive_lease;
mod owner;
#[cfg(unix)]
pub mod proxy;
#[cfg(target_os = "linux")]
pub mod run_as;
#[cfg(unix)]
pub mod servers;
#[cfg(unix)]
pub mod storm;
#[cfg(unix)]
pub mod witness;

use std::time::{Duration, Instant};

pub use owner::Owner;

/// Reports that a test is skipped because a privilege or a tool is missing. With
/// `REQUIRE_TEST_TOOLS` set, as in CI, the test fails instead, so that a skipped test does not
/// count as passed.
#[expect(
    clippy::print_stdout,
    reason = "the output is the only sign of a skipped test"
)]
pub fn skip(missing: &str) {
    assert!(
        std::env::var_os("REQUIRE_TEST_TOOLS").is_none(),
        "REQUIRE_TEST_TOOLS is set, but the test cannot run: {missing}"
    );
    println!("skipped: {missing}");
}

/// Waits until the condition is true. The time limit only ends a test that has failed.
pub fn eventually(event: &str, mut condition: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(30);
    while !condition() {
        assert!(Instant::now() < deadline, "timed out: {event}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// A small random number generator. Tests need variety, not unpredictability.
#[derive(Debug)]
pub struct Random(u64);

impl Random {
    /// Creates a generator from a seed.
    pub fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    /// Returns a number below `limit`.
    pub fn below(&mut self, limit: u64) -> u64 {
        // xorshift64*
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) % limit
    }
}
