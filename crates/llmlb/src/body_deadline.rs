//! Minimum rate at which a client must send the body of a request (`server.min_body_rate`).

use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::time::{Instant, Sleep, sleep_until};

use crate::contention::Contention;

/// Minimum interval of the timer for slow request bodies, so that a deadline in the past does not
/// cause a busy loop.
const MIN_TIMER: Duration = Duration::from_millis(1);

/// Minimum rate at which clients must send request bodies: while the server waits for a client, at
/// least `rate` bytes per second must arrive within each `window`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BodyPace {
    /// Time within which the bytes of the minimum rate must arrive (`server.body_timeout`).
    pub(crate) window: Duration,
    /// Minimum rate at which the client must send a request body, in bytes per second
    /// (`server.min_body_rate`).
    pub(crate) rate: u64,
}

impl BodyPace {
    /// Returns the minimum number of body bytes that the client must send within `time`.
    fn min_in(self, time: Duration) -> u64 {
        Self::min_bytes(self.rate, time)
    }

    /// Returns the minimum number of bytes that must be transferred within a window: at least one,
    /// even for a rate of 0, so that a client cannot stall forever.
    pub(crate) fn min_bytes(rate: u64, window: Duration) -> u64 {
        let bytes = u128::from(rate).saturating_mul(window.as_millis()) / 1000;
        u64::try_from(bytes).unwrap_or(u64::MAX).max(1)
    }
}

/// Deadline that expires if the client sends a request body too slowly.
///
/// Only time in which the server waits for the client counts. Time in which the backend reads the
/// body slowly does not, because the client is not at fault.
#[derive(Debug)]
pub(crate) struct BodyDeadline {
    pace: BodyPace,
    /// Set for a body that is streamed to a backend and so holds a slot: the limit is shorter while
    /// other requests wait for a slot.
    contention: Option<Contention>,
    /// Number of body bytes that have arrived in the current window. A new window begins when they
    /// suffice for the minimum rate.
    arrived: u64,
    /// Time in the current window in which the server waited for the client, without the wait that
    /// began at `since`.
    waited: Duration,
    /// Time since which the server waits for bytes of the client; `None` while it does not wait.
    since: Option<Instant>,
    /// Timer that all waits reuse. It is created on demand, since most bodies arrive together with
    /// the head.
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

    /// Counts body bytes that arrived, and ends the wait for the client.
    pub(crate) fn note(&mut self, bytes: usize) {
        if let Some(since) = self.since.take() {
            self.waited += since.elapsed();
        }
        self.arrived += bytes as u64;
        if self.arrived >= self.pace.min_in(self.pace.window) {
            self.arrived = 0;
            self.waited = Duration::ZERO;
        }
    }

    /// True while the server waits for the client to send more of the body.
    pub(crate) fn is_waiting(&self) -> bool {
        self.since.is_some()
    }

    /// Ready once the client has sent too few bytes for too long. It must be polled only while no
    /// bytes of the body are available.
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
            if waited >= limit && self.arrived < self.pace.min_in(waited) {
                return Poll::Ready(());
            }
            let next = Instant::now() + interval.min(window.saturating_sub(waited)).max(MIN_TIMER);
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
    fn minimum_bytes_are_proportional_to_the_window() {
        let min = |ms| BodyPace::min_bytes(1024, Duration::from_millis(ms));
        assert_eq!(min(30_000), 30 << 10);
        assert_eq!(min(900), 921);
        assert_eq!(min(1), 1);
        // With a rate of 0, at least one byte must still arrive.
        assert_eq!(BodyPace::min_bytes(0, Duration::from_secs(30)), 1);
        assert_eq!(BodyPace::min_bytes(u64::MAX, Duration::MAX), u64::MAX);
    }
}
