//! Helpers for tests with real processes: one that owns as it is told ([`Owner`]), several that
//! fight ([`storm`], [`boot`]), and a [`witness`] that decides whether two were inside.

#![expect(
    clippy::expect_used,
    clippy::missing_panics_doc,
    reason = "a harness that cannot go on must fail the test at once"
)]

#[cfg(unix)]
pub mod boot;
#[cfg(unix)]
pub mod contenders;
#[cfg(target_os = "linux")]
pub mod disk;
mod owner;
#[cfg(target_os = "linux")]
pub mod run_as;
#[cfg(unix)]
pub mod storm;
#[cfg(unix)]
pub mod witness;

use std::time::{Duration, Instant};

pub use owner::Owner;

/// Reports that a test is skipped because a privilege or a tool is missing. With `REQUIRE_TEST_TOOLS`
/// set, as in CI, the test fails instead: a test that was not run must not look like one that passed.
#[expect(clippy::print_stdout, reason = "a skipped test must say so")]
pub fn skip(why: &str) {
    assert!(
        std::env::var_os("REQUIRE_TEST_TOOLS").is_none(),
        "this test cannot be skipped here: {why}"
    );
    println!("skipped: {why}");
}

/// Waits until something is so. The time limit only ends a test that has failed.
pub fn eventually(what: &str, mut so: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(30);
    while !so() {
        assert!(Instant::now() < deadline, "waited in vain: {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// A small source of chance; tests need variety, not secrecy.
#[derive(Debug)]
pub struct Chance(u64);

impl Chance {
    /// Starts from a seed.
    pub fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    /// A number below `limit`.
    pub fn below(&mut self, limit: u64) -> u64 {
        // xorshift64*
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) % limit
    }
}
