//! The memory that clients can make the server use: `server.body_memory`, for all connections
//! together.
//!
//! What is charged, and where: each connection and each further request on it, large heads
//! (`server/client_memory.rs`), request bodies (`request/body.rs`, `upstream/upload.rs`) and unsent
//! responses (`server/backlog.rs`). Every charge is returned when its owner is dropped.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use bytes::Bytes;

use crate::episode::{Episode, Event};

/// Clients use little of the memory while they use less than this part.
const PLENTY: usize = 4;

/// Part of the memory that only connections may use. While bodies and responses fill the rest, small
/// requests are still served, and `llmlb status` works.
const FOR_CONNECTIONS: usize = 16;

/// The memory of all clients.
#[derive(Debug)]
pub(crate) struct Budget {
    most: usize,
    /// Maximum for everything but connections.
    most_besides: usize,
    used: AtomicUsize,
    /// Number of request bodies that have a share.
    bodies: AtomicUsize,
    refused: Episode,
}

impl Budget {
    pub(crate) fn new(most: usize) -> Self {
        Self {
            most,
            most_besides: most - most / FOR_CONNECTIONS,
            used: AtomicUsize::new(0),
            bodies: AtomicUsize::new(0),
            refused: Episode::default(),
        }
    }

    /// A budget of which nothing is kept for connections.
    #[cfg(test)]
    pub(crate) fn without_reserve(most: usize) -> Self {
        let most_besides = most;
        Self {
            most_besides,
            ..Self::new(most)
        }
    }

    /// Logs that a connection or a request was refused because it does not fit.
    pub(crate) fn note_refusal(&self) {
        self.log(self.refused.occurred(Instant::now()));
    }

    /// Logs that everything fits again. To be called from time to time.
    pub(crate) fn check_end(&self) {
        self.log(self.refused.check_end(Instant::now()));
    }

    fn log(&self, event: Option<Event>) {
        let most = self.most >> 20;
        match event {
            None => {}
            Some(Event::Began) => tracing::warn!(
                "refusing requests and connections: clients use all of their {most} MiB \
                 (server.body_memory)"
            ),
            Some(Event::Continues { count, since }) => tracing::warn!(
                "still refusing requests and connections beyond {most} MiB (server.body_memory): \
                 {count} in {} s",
                since.as_secs()
            ),
            Some(Event::Ended { count, lasted }) => tracing::warn!(
                "memory of clients is free again: refused {count} requests and connections within \
                 {} s (server.body_memory)",
                lasted.as_secs()
            ),
        }
    }

    /// Charges this many bytes; `false` if they exceed the budget.
    #[must_use]
    pub(crate) fn take(&self, bytes: usize) -> bool {
        self.take_up_to(bytes, self.most_besides)
    }

    /// The same for a connection.
    #[must_use]
    pub(crate) fn take_for_connection(&self, bytes: usize) -> bool {
        self.take_up_to(bytes, self.most)
    }

    /// The same for memory that is useful but not needed: only while clients use little.
    #[must_use]
    pub(crate) fn take_if_plenty(&self, bytes: usize) -> bool {
        self.take_up_to(bytes, self.most / PLENTY)
    }

    fn take_up_to(&self, bytes: usize, most: usize) -> bool {
        let taken = |used: usize| {
            let all = used.checked_add(bytes)?;
            (all <= most).then_some(all)
        };
        self.used
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, taken)
            .is_ok()
    }

    /// Charges this many bytes that are in use already.
    pub(crate) fn charge(&self, bytes: usize) {
        self.used.fetch_add(bytes, Ordering::Relaxed);
    }

    /// True if nothing is left.
    pub(crate) fn is_full(&self) -> bool {
        !self.has(1)
    }

    /// True if this many bytes are left.
    pub(crate) fn has(&self, bytes: usize) -> bool {
        let used = self.used.load(Ordering::Relaxed);
        used.checked_add(bytes)
            .is_some_and(|all| all <= self.most_besides)
    }

    /// Returns bytes that were charged.
    pub(crate) fn give_back(&self, bytes: usize) {
        // Most owners have nothing to return, and all threads share the counter.
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

/// Memory charged to one owner, returned when this is dropped.
#[derive(Debug)]
pub(crate) struct Share {
    budget: Arc<Budget>,
    bytes: usize,
}

impl Share {
    /// A share without any bytes yet.
    pub(crate) fn new(budget: &Arc<Budget>) -> Self {
        Self {
            budget: Arc::clone(budget),
            bytes: 0,
        }
    }

    /// Charges as much as is missing to this many bytes; `false` if that exceeds the budget.
    #[must_use]
    pub(crate) fn grow_to(&mut self, bytes: usize) -> bool {
        let more = bytes.saturating_sub(self.bytes);
        let taken = more == 0 || self.budget.take(more);
        if taken {
            self.bytes += more;
        }
        taken
    }

    /// Returns what exceeds this many bytes.
    pub(crate) fn shrink_to(&mut self, bytes: usize) {
        let less = self.bytes.saturating_sub(bytes);
        self.budget.give_back(less);
        self.bytes -= less;
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.budget.give_back(self.bytes);
    }
}

/// The share of a request body. A body that is the only one with a share may exceed the budget:
/// otherwise a body that is larger than the budget could never be served.
#[derive(Debug)]
pub(crate) struct BodyShare(Share);

impl BodyShare {
    pub(crate) fn new(budget: &Arc<Budget>) -> Self {
        budget.bodies.fetch_add(1, Ordering::Relaxed);
        Self(Share::new(budget))
    }

    /// Charges as much as is missing to this many bytes; `false` if that exceeds the budget and
    /// there are other bodies.
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

    /// The body. Its bytes stay charged until the last copy of it is dropped.
    pub(crate) fn keep(mut self, body: Bytes) -> Bytes {
        self.0.shrink_to(body.len());
        Bytes::from_owner(Kept { body, _share: self })
    }
}

impl Drop for BodyShare {
    fn drop(&mut self) {
        self.0.budget.bodies.fetch_sub(1, Ordering::Relaxed);
    }
}

/// A body and its share.
struct Kept {
    body: Bytes,
    _share: BodyShare,
}

impl AsRef<[u8]> for Kept {
    fn as_ref(&self) -> &[u8] {
        &self.body
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_taken_is_given_back_once() {
        let budget = Arc::new(Budget::without_reserve(100));
        let (mut one, mut two) = (BodyShare::new(&budget), BodyShare::new(&budget));
        assert!(one.grow_to(30) && one.grow_to(60) && two.grow_to(40));
        assert!(!two.grow_to(41) && !one.grow_to(61));
        assert_eq!(budget.used(), 100);
        drop(two);
        assert!(one.grow_to(61));
        assert_eq!(budget.used(), 61);
        // What was reserved while it arrived is given back; the rest stays until the last copy.
        let body = one.keep(Bytes::from_static(b"body"));
        let mut copy = body.clone();
        drop(body);
        bytes::Buf::advance(&mut copy, 2);
        assert_eq!((&copy[..], budget.used()), (&b"dy"[..], 4));
        drop(copy);
        assert_eq!(budget.used(), 0);
    }

    #[test]
    fn only_a_body_without_others_may_exceed_the_budget() {
        let budget = Arc::new(Budget::without_reserve(100));
        // Connections and responses never exceed it, and do not count as bodies.
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
    fn last_part_is_for_connections() {
        let budget = Arc::new(Budget::new(1600));
        let mut body = BodyShare::new(&budget);
        let _other = BodyShare::new(&budget);
        assert!(body.grow_to(1500) && !body.grow_to(1501));
        assert!(!budget.take(1) && budget.is_full());
        assert!(budget.take_for_connection(100) && !budget.take_for_connection(1));
        drop(body);
        assert!(budget.take(1400) && !budget.take(1));
    }

    #[test]
    fn threads_that_take_and_give_back_leave_nothing() {
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
