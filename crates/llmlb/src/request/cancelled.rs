//! Counts the requests that each client address cancels before the end of the response.
//!
//! A client that sends requests and cancels them makes backends work at no cost of its own.
//! `server.max_resets` ends an HTTP/2 connection that cancels too many requests. A client that opens
//! a new connection each time is slowed down: after too many cancelled requests, further requests of
//! its address wait before they are forwarded. They are not rejected, because many users may share an
//! address.

use std::hash::BuildHasher;
use std::net::IpAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use foldhash::quality::RandomState;

use crate::atomic_duration::AtomicDuration;
use crate::client_network::ClientNetwork;

/// Number of connections for which one address may cancel requests: its limit is this multiple of
/// the limit of one connection (`server.max_resets`).
const CONNECTIONS: u32 = 10;
/// Time whose cancelled requests an address may use up at once, so that a burst of cancelled
/// requests is not delayed.
const BURST: Duration = Duration::from_secs(6);
/// Maximum delay of a request whose client address has cancelled too many requests.
const MAX_DELAY: Duration = Duration::from_secs(1);
/// Number of counters of cancelled requests. Addresses whose hashes select the same counter are
/// delayed together, which is rare and harmless.
const CELLS: usize = 1024;

/// Rate limit on cancelled requests for each client address. An address that exceeds the limit is
/// not rejected, but its next requests are delayed.
#[derive(Debug)]
pub(crate) struct Cancelled {
    /// Share of the limit that one cancelled request uses up, as a time: the reciprocal of the
    /// limit per address. Zero if there is no limit.
    interval: AtomicDuration,
    started: Instant,
    hasher: RandomState,
    /// For each counter a time in microseconds since `started`. Each cancelled request moves the
    /// time one `interval` later. The addresses of the counter must wait once the time is more than
    /// `BURST` in the future.
    used_up: Box<[AtomicU64]>,
}

impl Cancelled {
    /// Returns counters for the setting `server.max_resets` (`per_minute`), the number of requests
    /// that one connection may cancel per minute. An address may cancel [`CONNECTIONS`] times as
    /// many. 0 means no limit.
    pub(crate) fn new(per_minute: u32) -> Self {
        Self {
            interval: AtomicDuration::new(interval(per_minute)),
            started: Instant::now(),
            hasher: RandomState::default(),
            used_up: (0..CELLS).map(|_| AtomicU64::new(0)).collect(),
        }
    }

    /// Applies `server.max_resets` of a reloaded configuration, from which the limit of an address
    /// is computed.
    pub(crate) fn set_limit(&self, per_minute: u32) {
        self.interval.set(interval(per_minute));
    }

    pub(crate) fn note(&self, address: IpAddr, now: Instant) {
        let now = self.micros(now);
        let interval = micros(self.interval.get());
        let max = now + micros(BURST) + micros(MAX_DELAY);
        let later = |until: u64| Some((until.max(now) + interval).min(max));
        let _ = (self.cell(address)).fetch_update(Ordering::Relaxed, Ordering::Relaxed, later);
    }

    /// Returns the delay of the next request of this address, if the address has cancelled too many
    /// requests.
    pub(crate) fn delay(&self, address: IpAddr, now: Instant) -> Option<Duration> {
        let until = self.cell(address).load(Ordering::Relaxed);
        let free = self.micros(now) + micros(BURST);
        let over = until.checked_sub(free).filter(|over| *over > 0)?;
        Some(Duration::from_micros(over))
    }

    fn micros(&self, now: Instant) -> u64 {
        micros(now.saturating_duration_since(self.started))
    }

    fn cell(&self, address: IpAddr) -> &AtomicU64 {
        let network = ClientNetwork::containing(address);
        #[expect(
            clippy::cast_possible_truncation,
            reason = "the lower bits of the hash select the counter"
        )]
        let index = self.hasher.hash_one(network) as usize % CELLS;
        &self.used_up[index]
    }
}

fn interval(per_minute: u32) -> Duration {
    let interval = Duration::from_secs(60).checked_div(per_minute.saturating_mul(CONNECTIONS));
    interval.unwrap_or_default()
}

fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX / 4)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(last: u8) -> IpAddr {
        IpAddr::from([10, 0, 0, last])
    }

    #[test]
    fn requests_of_an_address_wait_once_it_has_cancelled_too_many() {
        // An address may cancel 200 requests per second, and 1200 at once.
        let cancelled = Cancelled::new(1200);
        let now = Instant::now();
        for _ in 0..1200 {
            assert_eq!(cancelled.delay(address(1), now), None);
            cancelled.note(address(1), now);
        }
        cancelled.note(address(1), now);
        let delay = cancelled.delay(address(1), now).unwrap();
        assert!(delay <= Duration::from_millis(6), "{delay:?}");
        for _ in 0..10_000 {
            cancelled.note(address(1), now);
        }
        assert_eq!(cancelled.delay(address(1), now), Some(MAX_DELAY));
        assert_eq!(cancelled.delay(address(1), now + MAX_DELAY), None);
    }

    #[test]
    fn other_addresses_do_not_wait() {
        let cancelled = Cancelled::new(10);
        let now = Instant::now();
        for _ in 0..10_000 {
            cancelled.note(address(1), now);
        }
        let waiting = (2..=255).filter(|last| cancelled.delay(address(*last), now).is_some());
        // Addresses select their counter by a hash. So a few of the 254 other addresses may share
        // the counter of the address that cancelled requests, and wait with it.
        assert!(waiting.count() < 10);
        let mapped = "::ffff:10.0.0.1".parse().unwrap();
        assert!(cancelled.delay(mapped, now).is_some());
    }

    #[test]
    fn limit_of_zero_means_no_limit() {
        let cancelled = Cancelled::new(0);
        let now = Instant::now();
        for _ in 0..10_000 {
            cancelled.note(address(1), now);
        }
        assert_eq!(cancelled.delay(address(1), now), None);
    }
}
