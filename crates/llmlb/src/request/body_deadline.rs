//! The slowest that a client may send a request's body.

use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::time::{Instant, Sleep, sleep_until};

/// Limits on the speed of bodies: in any `window` that the server spends waiting for the client, at
/// least `rate` bytes per second must arrive.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BodyPace {
    /// `server.body_timeout`
    pub(crate) window: Duration,
    /// `server.min_body_rate`
    pub(crate) rate: u64,
}

impl BodyPace {
    /// Bytes that must be transferred within one window: at least one, whatever the rate.
    pub(crate) fn least_bytes(rate: u64, window: Duration) -> u64 {
        let bytes = u128::from(rate).saturating_mul(window.as_millis()) / 1000;
        u64::try_from(bytes).unwrap_or(u64::MAX).max(1)
    }
}

/// Expires when a body arrives too slowly.
///
/// Only the time spent waiting for the client counts: a backend that takes its time to read a body
/// is not the client's fault.
#[derive(Debug)]
pub(crate) struct BodyDeadline {
    window: Duration,
    least: u64,
    /// Bytes that arrived in this window, and the time spent waiting for them.
    arrived: u64,
    waited: Duration,
    /// Start of the current wait.
    since: Option<Instant>,
    /// Reused by all waits. Most bodies arrive with their head and need none.
    timer: Option<Pin<Box<Sleep>>>,
}

impl BodyDeadline {
    pub(crate) fn new(pace: BodyPace) -> Self {
        Self {
            window: pace.window,
            least: BodyPace::least_bytes(pace.rate, pace.window),
            arrived: 0,
            waited: Duration::ZERO,
            since: None,
            timer: None,
        }
    }

    /// Notes that this many bytes arrived.
    pub(crate) fn note(&mut self, bytes: usize) {
        if let Some(since) = self.since.take() {
            self.waited += since.elapsed();
        }
        self.arrived += bytes as u64;
        if self.arrived >= self.least {
            self.arrived = 0;
            self.waited = Duration::ZERO;
        }
    }

    /// True while the body waits for the client.
    pub(crate) fn is_waiting(&self) -> bool {
        self.since.is_some()
    }

    /// To be called while nothing has arrived. Ready once too little has arrived for too long.
    pub(crate) fn poll_expired(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let is_new = self.since.is_none();
        let since = *self.since.get_or_insert_with(Instant::now);
        let end = since + self.window.saturating_sub(self.waited);
        let timer = self.timer.get_or_insert_with(|| Box::pin(sleep_until(end)));
        if is_new {
            timer.as_mut().reset(end);
        }
        timer.as_mut().poll(cx)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rate_holds_for_windows_of_any_length() {
        let least = |ms| BodyPace::least_bytes(1024, Duration::from_millis(ms));
        assert_eq!(least(30_000), 30 << 10);
        assert_eq!(least(900), 921);
        assert_eq!(least(1), 1);
        // Without a rate, something must still arrive.
        assert_eq!(BodyPace::least_bytes(0, Duration::from_secs(30)), 1);
        assert_eq!(BodyPace::least_bytes(u64::MAX, Duration::MAX), u64::MAX);
    }
}
