//! The slowest that a client may send a request's body.

use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::time::{Instant, Sleep, sleep_until};

use crate::contention::Contention;

/// The shortest time between two looks at a body that does not arrive.
const SHORTEST: Duration = Duration::from_millis(1);

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
    /// Bytes that must arrive within this time.
    fn least(self, time: Duration) -> u64 {
        Self::least_bytes(self.rate, time)
    }

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
    pace: BodyPace,
    /// Of a body that holds a slot while it arrives.
    contention: Option<Contention>,
    /// Bytes that arrived in this window, and the time spent waiting for them.
    arrived: u64,
    waited: Duration,
    /// Start of the current wait.
    since: Option<Instant>,
    /// Reused by all waits. Most bodies arrive with their head and need none.
    timer: Option<Pin<Box<Sleep>>>,
}

impl BodyDeadline {
    pub(crate) fn new(pace: BodyPace, contention: Option<Contention>) -> Self {
        Self {
            pace,
            contention,
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
        if self.arrived >= self.pace.least(self.pace.window) {
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
        let mut is_set = self.since.is_some();
        let since = *self.since.get_or_insert_with(Instant::now);
        loop {
            if is_set && let Some(timer) = &mut self.timer {
                ready!(timer.as_mut().poll(cx));
            }
            let waited = self.waited + since.elapsed();
            let window = self.pace.window;
            let (limit, interval) = match &self.contention {
                Some(contention) => (contention.limit(window), contention.interval(window)),
                None => (window, window),
            };
            if waited >= limit && self.arrived < self.pace.least(waited) {
                return Poll::Ready(());
            }
            let next = Instant::now() + interval.min(window.saturating_sub(waited)).max(SHORTEST);
            match &mut self.timer {
                Some(timer) => timer.as_mut().reset(next),
                None => self.timer = Some(Box::pin(sleep_until(next))),
            }
            is_set = true;
        }
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
