//! Waiting for a condition, with a deadline as a safety net.

use std::error::Error;
use std::fmt;
use std::thread;
use std::time::{Duration, Instant};

/// Maximum duration of a wait. It ends a test that hangs, and is far longer than any expected duration.
pub const DEADLINE: Duration = Duration::from_secs(60);

const POLL_EVERY: Duration = Duration::from_millis(5);

/// Error of a condition that did not become true within its deadline.
#[derive(Debug)]
pub struct TimedOut(String);

impl fmt::Display for TimedOut {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "timed out waiting until {}", self.0)
    }
}

impl Error for TimedOut {}

/// Polls `check` until it returns a value, for at most [`DEADLINE`]. `condition` completes the
/// sentence "timed out waiting until ..".
#[track_caller]
pub fn eventually<T>(condition: &str, check: impl FnMut() -> Option<T>) -> T {
    let value = try_eventually(condition, check);
    value.unwrap_or_else(|timed_out| panic!("{timed_out}"))
}

/// Polls `is_true` until it returns true, for at most [`DEADLINE`].
#[track_caller]
pub fn until(condition: &str, mut is_true: impl FnMut() -> bool) {
    eventually(condition, || is_true().then_some(()));
}

/// Like [`eventually`], but returns a failure instead of panicking.
pub fn try_eventually<T>(condition: &str, check: impl FnMut() -> Option<T>) -> Result<T, TimedOut> {
    poll(DEADLINE, check).ok_or_else(|| TimedOut(condition.to_owned()))
}

/// True if `check` returns true within `limit`.
pub fn is_reached(limit: Duration, mut check: impl FnMut() -> bool) -> bool {
    poll(limit, || check().then_some(())).is_some()
}

fn poll<T>(limit: Duration, mut check: impl FnMut() -> Option<T>) -> Option<T> {
    let deadline = Instant::now() + limit;
    loop {
        if let Some(value) = check() {
            return Some(value);
        }
        if Instant::now() >= deadline {
            return None;
        }
        thread::sleep(POLL_EVERY);
    }
}
