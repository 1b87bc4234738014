//! The memory that bodies take while they are held, all together.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;

/// What there is for all bodies.
#[derive(Debug)]
pub(crate) struct Budget {
    most: usize,
    used: AtomicUsize,
}

/// What one body has of it, given back when this is dropped.
#[derive(Debug)]
pub(super) struct Share {
    budget: Arc<Budget>,
    bytes: usize,
}

impl Budget {
    pub(crate) fn new(most: usize) -> Self {
        Self {
            most,
            used: AtomicUsize::new(0),
        }
    }
}

impl Share {
    /// Nothing yet.
    pub(super) fn of(budget: &Arc<Budget>) -> Self {
        Self {
            budget: Arc::clone(budget),
            bytes: 0,
        }
    }

    /// Takes so many bytes in all; `false` if there are not enough. Whoever is alone gets what it
    /// needs: otherwise a body that is larger than the budget could never be served.
    #[must_use]
    pub(super) fn grow_to(&mut self, bytes: usize) -> bool {
        let own = self.bytes;
        let more = bytes.saturating_sub(own);
        let grown = |used: usize| {
            let all = used.checked_add(more)?;
            (all <= self.budget.most || used == own).then_some(all)
        };
        let taken = self
            .budget
            .used
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, grown)
            .is_ok();
        if taken {
            self.bytes += more;
        }
        taken
    }

    /// The body: the share is given back with the last copy of it.
    pub(super) fn keep(self, body: Bytes) -> Bytes {
        Bytes::from_owner(Kept { body, _share: self })
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.budget.used.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

/// A body and its share.
struct Kept {
    body: Bytes,
    _share: Share,
}

impl AsRef<[u8]> for Kept {
    fn as_ref(&self) -> &[u8] {
        &self.body
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn used(budget: &Budget) -> usize {
        budget.used.load(Ordering::Relaxed)
    }

    #[test]
    fn what_is_taken_is_given_back_once() {
        let budget = Arc::new(Budget::new(100));
        let (mut one, mut two) = (Share::of(&budget), Share::of(&budget));
        assert!(one.grow_to(30) && one.grow_to(60) && two.grow_to(40));
        assert!(!two.grow_to(41) && !one.grow_to(61));
        assert_eq!(used(&budget), 100);
        drop(two);
        assert!(one.grow_to(61));
        assert_eq!(used(&budget), 61);
        let body = one.keep(Bytes::from_static(b"body"));
        let mut copy = body.clone();
        drop(body);
        bytes::Buf::advance(&mut copy, 2);
        assert_eq!((&copy[..], used(&budget)), (&b"dy"[..], 61));
        drop(copy);
        assert_eq!(used(&budget), 0);
    }

    #[test]
    fn whoever_is_alone_gets_more_than_there_is() {
        let budget = Arc::new(Budget::new(100));
        let mut large = Share::of(&budget);
        assert!(large.grow_to(99) && large.grow_to(5000));
        let mut other = Share::of(&budget);
        assert!(!other.grow_to(1));
        drop(large);
        assert!(other.grow_to(1));
        // Not alone any more, it may not grow beyond.
        let mut large = Share::of(&budget);
        assert!(!large.grow_to(100));
    }

    #[test]
    fn threads_that_take_and_give_back_leave_nothing() {
        let budget = Arc::new(Budget::new(1000));
        std::thread::scope(|scope| {
            for size in 1..=4 {
                let budget = &budget;
                scope.spawn(move || {
                    for _ in 0..10_000 {
                        let mut share = Share::of(budget);
                        let _ = share.grow_to(size * 100) && share.grow_to(size * 150);
                    }
                });
            }
        });
        assert_eq!(used(&budget), 0);
    }
}
