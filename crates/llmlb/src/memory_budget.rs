//! Limit on the memory that all client connections together can make the server use
//! (`server.body_memory`).
//!
//! The budget is charged for connections, further requests on a connection and large heads
//! (`server/client_memory.rs`), request bodies (`request/body.rs`, `upstream/upload.rs`) and unsent
//! responses (`server/backlog.rs`). Every charge is released when its owner is dropped.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use bytes::Bytes;

use crate::episode::{Episode, Event};

/// Divisor of the budget for optional buffers, which save CPU: they are charged only while less
/// than a quarter of the budget is used.
const PLENTY: usize = 4;

/// Divisor of the part of the budget that only connections may use: a sixteenth. While bodies and
/// responses use up the rest, small requests are still served and `llmlb status` works.
const FOR_CONNECTIONS: usize = 16;

/// Memory budget that all client connections share (`server.body_memory`).
#[derive(Debug)]
pub(crate) struct Budget {
    limit: AtomicUsize,
    /// Limit of the budget for all charges except those of connections, which have a reserve.
    shared_limit: AtomicUsize,
    used: AtomicUsize,
    /// Number of request bodies in memory that have a [`BodyShare`]. The only one may exceed the
    /// budget.
    bodies: AtomicUsize,
    refused: Episode,
}

impl Budget {
    pub(crate) fn new(limit: usize) -> Self {
        Self {
            limit: AtomicUsize::new(limit),
            shared_limit: AtomicUsize::new(shared(limit)),
            used: AtomicUsize::new(0),
            bodies: AtomicUsize::new(0),
            refused: Episode::default(),
        }
    }

    /// Returns a budget without a reserve for connections, so that tests can use round numbers.
    #[cfg(test)]
    pub(crate) fn without_reserve(limit: usize) -> Self {
        Self {
            shared_limit: AtomicUsize::new(limit),
            ..Self::new(limit)
        }
    }

    /// Applies `server.body_memory` of a reloaded configuration. Memory that is charged stays
    /// charged: after a reduction, nothing is charged until enough is released.
    pub(crate) fn set_limit(&self, limit: usize) {
        self.limit.store(limit, Ordering::Relaxed);
        self.shared_limit.store(shared(limit), Ordering::Relaxed);
    }

    /// Logs that a connection or a request was rejected because the budget is used up. Repeated
    /// rejections are logged at intervals.
    pub(crate) fn note_refusal(&self) {
        self.log(self.refused.occurred(Instant::now()));
    }

    /// Logs the end of a period of rejections. It is called periodically, because no event marks
    /// the end.
    pub(crate) fn check_end(&self) {
        self.log(self.refused.check_end(Instant::now()));
    }

    fn log(&self, event: Option<Event>) {
        let limit = self.limit.load(Ordering::Relaxed) >> 20;
        match event {
            None => {}
            Some(Event::Began) => tracing::warn!(
                "rejecting requests and connections: clients use all of the {limit} MiB of \
                 server.body_memory"
            ),
            Some(Event::Continues { count, since }) => tracing::warn!(
                "still rejecting requests and connections: clients use all of the {limit} MiB of \
                 server.body_memory; rejected {count} in {} s",
                since.as_secs()
            ),
            Some(Event::Ended { count, lasted }) => tracing::warn!(
                "server.body_memory has free space again; rejected {count} requests and connections \
                 in {} s",
                lasted.as_secs()
            ),
        }
    }

    /// Charges memory of a request or a response. Returns `false` if it would exceed the budget.
    #[must_use]
    pub(crate) fn try_charge(&self, bytes: usize) -> bool {
        self.try_charge_up_to(bytes, self.shared_limit.load(Ordering::Relaxed))
    }

    /// Charges memory of a connection. Connections may also use the part of the budget that is
    /// reserved for them, so that bodies and responses cannot keep new clients out. Returns `false`
    /// if the charge would exceed the whole budget.
    #[must_use]
    pub(crate) fn try_charge_connection(&self, bytes: usize) -> bool {
        self.try_charge_up_to(bytes, self.limit.load(Ordering::Relaxed))
    }

    /// Charges memory that saves CPU but is not required. Returns `false` unless most of the budget is free.
    #[must_use]
    pub(crate) fn try_charge_if_plenty(&self, bytes: usize) -> bool {
        self.try_charge_up_to(bytes, self.limit.load(Ordering::Relaxed) / PLENTY)
    }

    fn try_charge_up_to(&self, bytes: usize, limit: usize) -> bool {
        let charged = |used: usize| {
            let all = used.checked_add(bytes)?;
            (all <= limit).then_some(all)
        };
        self.used
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, charged)
            .is_ok()
    }

    /// Charges memory that is in use already and cannot be refused, even if it exceeds the budget.
    pub(crate) fn charge(&self, bytes: usize) {
        self.used.fetch_add(bytes, Ordering::Relaxed);
    }

    /// True if the budget is used up, so that not a single byte can be charged for a request or
    /// response.
    pub(crate) fn is_full(&self) -> bool {
        !self.has(1)
    }

    /// True if this many bytes can be charged for a request or response.
    pub(crate) fn has(&self, bytes: usize) -> bool {
        let used = self.used.load(Ordering::Relaxed);
        used.checked_add(bytes)
            .is_some_and(|all| all <= self.shared_limit.load(Ordering::Relaxed))
    }

    pub(crate) fn release(&self, bytes: usize) {
        // Fast path: most owners have nothing to release, and a write to the counter that all threads
        // share is slow.
        if bytes == 0 {
            return;
        }
        self.used.fetch_sub(bytes, Ordering::Relaxed);
    }

    #[cfg(test)]
    pub(crate) fn used(&self) -> usize {
        self.used.load(Ordering::Relaxed)
    }
}

/// Returns the part of a budget that bodies and responses may use; the rest is reserved for
/// connections.
fn shared(limit: usize) -> usize {
    limit - limit / FOR_CONNECTIONS
}

/// Memory that is charged to the budget for one owner, and released when the share is dropped.
#[derive(Debug)]
pub(crate) struct Share {
    budget: Arc<Budget>,
    bytes: usize,
}

impl Share {
    /// A share of 0 bytes.
    pub(crate) fn new(budget: &Arc<Budget>) -> Self {
        Self {
            budget: Arc::clone(budget),
            bytes: 0,
        }
    }

    #[must_use]
    pub(crate) fn grow_to(&mut self, bytes: usize) -> bool {
        let more = bytes.saturating_sub(self.bytes);
        let is_charged = more == 0 || self.budget.try_charge(more);
        if is_charged {
            self.bytes += more;
        }
        is_charged
    }

    pub(crate) fn shrink_to(&mut self, bytes: usize) {
        let less = self.bytes.saturating_sub(bytes);
        self.budget.release(less);
        self.bytes -= less;
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.budget.release(self.bytes);
    }
}

/// Share of a request body in the budget. The only body in memory may exceed the budget: otherwise
/// a body that is larger than the budget could never be served.
#[derive(Debug)]
pub(crate) struct BodyShare(Share);

impl BodyShare {
    pub(crate) fn new(budget: &Arc<Budget>) -> Self {
        budget.bodies.fetch_add(1, Ordering::Relaxed);
        Self(Share::new(budget))
    }

    /// Grows the share to this many bytes. Returns `false` if that would exceed the budget while
    /// other bodies have a share.
    #[must_use]
    pub(crate) fn grow_to(&mut self, bytes: usize) -> bool {
        let share = &mut self.0;
        if share.grow_to(bytes) {
            return true;
        }
        let is_alone = share.budget.bodies.load(Ordering::Relaxed) == 1;
        if is_alone {
            let more = bytes.saturating_sub(share.bytes);
            share.budget.charge(more);
            share.bytes += more;
        }
        is_alone
    }

    /// Attaches the share to a body, whose bytes stay charged until the last clone of the body is
    /// dropped.
    pub(crate) fn attach(mut self, body: Bytes) -> Bytes {
        self.0.shrink_to(body.len());
        Bytes::from_owner(ChargedBody { body, _share: self })
    }
}

impl Drop for BodyShare {
    fn drop(&mut self) {
        self.0.budget.bodies.fetch_sub(1, Ordering::Relaxed);
    }
}

struct ChargedBody {
    body: Bytes,
    _share: BodyShare,
}

impl AsRef<[u8]> for ChargedBody {
    fn as_ref(&self) -> &[u8] {
        &self.body
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn charged_bytes_are_released_once() {
        let budget = Arc::new(Budget::without_reserve(100));
        let (mut one, mut two) = (BodyShare::new(&budget), BodyShare::new(&budget));
        assert!(one.grow_to(30) && one.grow_to(60) && two.grow_to(40));
        assert!(!two.grow_to(41) && !one.grow_to(61));
        assert_eq!(budget.used(), 100);
        drop(two);
        assert!(one.grow_to(61));
        assert_eq!(budget.used(), 61);
        // Bytes that are charged beyond the body's length must be released at once, and the rest
        // when the last clone of the body is dropped.
        let body = one.attach(Bytes::from_static(b"body"));
        let mut copy = body.clone();
        drop(body);
        bytes::Buf::advance(&mut copy, 2);
        assert_eq!((&copy[..], budget.used()), (&b"dy"[..], 4));
        drop(copy);
        assert_eq!(budget.used(), 0);
    }

    #[test]
    fn only_body_in_memory_may_exceed_the_budget() {
        let budget = Arc::new(Budget::without_reserve(100));
        // A request body may exceed the budget if it is the only body. A connection may not, and
        // must not make the body count as one of two.
        let mut connection = Share::new(&budget);
        assert!(connection.grow_to(60) && !connection.grow_to(101));
        let mut large = BodyShare::new(&budget);
        assert!(large.grow_to(40) && large.grow_to(5000));
        assert_eq!(budget.used(), 5060);
        let mut other = BodyShare::new(&budget);
        assert!(!other.grow_to(1) && !large.grow_to(5001));
        assert!(!connection.grow_to(61));
        drop(large);
        assert!(other.grow_to(41));
        drop((connection, other));
        assert_eq!(budget.used(), 0);
    }

    #[test]
    fn reserve_can_be_charged_by_connections_only() {
        let budget = Arc::new(Budget::new(1600));
        let mut body = BodyShare::new(&budget);
        let _other = BodyShare::new(&budget);
        assert!(body.grow_to(1500) && !body.grow_to(1501));
        assert!(!budget.try_charge(1) && budget.is_full());
        assert!(budget.try_charge_connection(100) && !budget.try_charge_connection(1));
        drop(body);
        assert!(budget.try_charge(1400) && !budget.try_charge(1));
    }

    #[test]
    fn lower_limit_applies_once_enough_is_released() {
        let budget = Arc::new(Budget::new(1600));
        assert!(budget.try_charge(1000));
        budget.set_limit(800);
        assert!(!budget.try_charge(1) && !budget.try_charge_connection(1));
        budget.release(500);
        assert!(budget.try_charge(250) && !budget.try_charge(1));
        assert!(budget.try_charge_connection(50) && !budget.try_charge_connection(1));
    }

    #[test]
    fn concurrent_charges_and_releases_sum_to_zero() {
        let budget = Arc::new(Budget::without_reserve(1000));
        std::thread::scope(|scope| {
            for size in 1..=4 {
                let budget = &budget;
                scope.spawn(move || {
                    for _ in 0..10_000 {
                        let mut share = BodyShare::new(budget);
                        let _ = share.grow_to(size * 100) && share.grow_to(size * 150);
                    }
                });
            }
        });
        assert_eq!(budget.used(), 0);
        assert_eq!(budget.bodies.load(Ordering::Relaxed), 0);
    }
}
