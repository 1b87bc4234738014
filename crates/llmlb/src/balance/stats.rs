//! State of a backend that changes with every request: counts, latency, failures. All threads share
//! it without locks.

use std::sync::atomic::{AtomicBool, AtomicU16, AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use super::breaker::{Breaker, Verdict};
use super::clock::Moment;
use super::latency::Latency;

/// Counters of one backend. Aligned so that threads which use other backends do not share its cache
/// line.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(super) struct BackendStats {
    is_up: AtomicBool,
    /// True while the configuration does not name the backend any more. Requests in flight finish; no
    /// further request is sent, also not by requests that found their backends before the change.
    is_removed: AtomicBool,
    /// True if an operator has drained the backend: requests in flight finish, and no further request is sent.
    is_drained: AtomicBool,
    /// True if the table of missing endpoints may have an entry. While false, the selection of a
    /// backend skips the lookup in that table.
    lacks_any: AtomicBool,
    /// Number of times the backend came up. Its prefix cache is empty each time it comes up.
    epochs: AtomicU16,
    outstanding: AtomicU32,
    requests: AtomicU64,
    /// A packed [`Latency`].
    latency: AtomicU64,
    /// A packed [`Breaker`].
    breaker: AtomicU64,
    /// Number of ejections and of pauses that the backend requested.
    ejections: AtomicU64,
}

impl BackendStats {
    pub(super) fn is_up(&self) -> bool {
        self.responds() && !self.is_drained()
    }

    /// True if the last probe or request found that the backend responds. A drained backend responds too.
    pub(super) fn responds(&self) -> bool {
        self.is_up.load(Ordering::Relaxed) && !self.is_removed()
    }

    /// True if an operator has drained the backend.
    pub(super) fn is_drained(&self) -> bool {
        self.is_drained.load(Ordering::Relaxed)
    }

    /// Returns the old value.
    pub(super) fn set_drained(&self, is_drained: bool) -> bool {
        self.is_drained.swap(is_drained, Ordering::SeqCst)
    }

    pub(super) fn is_removed(&self) -> bool {
        self.is_removed.load(Ordering::Relaxed)
    }

    pub(super) fn set_removed(&self, is_removed: bool) {
        self.is_removed.store(is_removed, Ordering::SeqCst);
    }

    /// Notes that the backend came up or went down. Only a backend that is up gets requests.
    pub(super) fn set_up(&self, is_up: bool) {
        if is_up && !self.is_up.load(Ordering::Relaxed) {
            self.epochs.fetch_add(1, Ordering::Relaxed);
            // Clear the failures when the backend comes up: they belong to the program that ran
            // before.
            self.breaker.store(0, Ordering::Relaxed);
        }
        self.is_up.store(is_up, Ordering::SeqCst);
    }

    pub(super) fn lacks_any(&self) -> bool {
        self.lacks_any.load(Ordering::Relaxed)
    }

    pub(super) fn set_lacks_any(&self, lacks_any: bool) {
        self.lacks_any.store(lacks_any, Ordering::Relaxed);
    }

    /// Returns the number of times that the backend came up. The backend's prefix cache is empty
    /// each time, so prompts of an earlier epoch do not count for affinity.
    pub(super) fn epoch(&self) -> u16 {
        self.epochs.load(Ordering::Relaxed)
    }

    pub(super) fn outstanding(&self) -> u32 {
        self.outstanding.load(Ordering::Relaxed)
    }

    pub(super) fn requests(&self) -> u64 {
        self.requests.load(Ordering::Relaxed)
    }

    /// Number of ejections and of pauses that the backend requested.
    pub(super) fn ejections(&self) -> u64 {
        self.ejections.load(Ordering::Relaxed)
    }

    pub(super) fn latency(&self, now: Moment) -> u32 {
        Latency::unpack(self.latency.load(Ordering::Relaxed)).now(now)
    }

    pub(super) fn verdict(&self, now: Moment) -> Verdict {
        match self.breaker.load(Ordering::Relaxed) {
            0 => Verdict::Healthy, // The usual case.
            packed => Breaker::unpack(packed).verdict(now),
        }
    }

    /// Acquires a slot at the backend. False if `limit` slots are in use already.
    pub(super) fn try_acquire(&self, limit: u32) -> bool {
        // Sequentially consistent, like `release`, which is followed by a check for waiting requests.
        // With weaker ordering, a request could see no free slot and start to wait, while the thread
        // that releases a slot sees no waiting request: the free slot would not be used.
        let taken = self
            .outstanding
            .fetch_update(Ordering::SeqCst, Ordering::SeqCst, |now| {
                (now < limit).then_some(now + 1)
            });
        if taken.is_ok() {
            self.requests.fetch_add(1, Ordering::Relaxed);
        }
        taken.is_ok()
    }

    /// Releases a slot.
    pub(super) fn release(&self) {
        self.outstanding.fetch_sub(1, Ordering::SeqCst);
    }

    /// Claims the single request that tries an ejected backend again. True for one caller only.
    pub(super) fn claim_trial(&self, now: Moment) -> bool {
        let packed = self.breaker.load(Ordering::Relaxed);
        let breaker = Breaker::unpack(packed);
        breaker.verdict(now) == Verdict::TrialDue
            && self
                .breaker
                .compare_exchange(
                    packed,
                    breaker.tried(now).pack(),
                    Ordering::SeqCst,
                    Ordering::Relaxed,
                )
                .is_ok()
    }

    /// Adds the latency of a response to the backend's average.
    pub(super) fn note_latency(&self, first_byte: Duration, now: Moment) {
        let packed = self.latency.load(Ordering::Relaxed);
        let latency = Latency::unpack(packed).after(first_byte, now);
        // Use no atomic exchange: one of two simultaneous updates may be lost, which does not
        // matter to an average.
        self.latency.store(latency.pack(), Ordering::Relaxed);
    }

    /// Notes that a response began. Returns true if this ends an ejection, so that waiting requests
    /// can use the backend.
    pub(super) fn note_began(&self, now: Moment) -> bool {
        let (before, _) = self.change(|breaker| breaker.began(now));
        before.verdict(now) != Verdict::Healthy
    }

    /// True if the breaker has its initial state, so that a complete response need not change it.
    pub(super) fn has_no_failures(&self) -> bool {
        self.breaker.load(Ordering::Relaxed) == 0
    }

    /// Notes a complete response. Returns true if this ends an ejection, so that waiting requests
    /// can use the backend.
    pub(super) fn note_ended(&self, now: Moment) -> bool {
        let (before, _) = self.change(|breaker| breaker.ended(now));
        before.verdict(now) != Verdict::Healthy
    }

    /// Notes a failed request. Returns the time at which the ejection ends, if this failure started
    /// or prolonged an ejection, so that the caller logs it.
    pub(super) fn note_failed(&self, now: Moment) -> Option<Moment> {
        self.change_to_ejected(now, |breaker| breaker.failed(now))
    }

    /// Ejects the backend. Returns the time at which the ejection ends, if this call started or
    /// prolonged it, so that the caller logs it once.
    pub(super) fn eject(&self, now: Moment) -> Option<Moment> {
        self.change_to_ejected(now, |breaker| breaker.ejected(now))
    }

    /// Notes a response that proves neither success nor failure. Returns true if a new trial is
    /// due.
    pub(super) fn note_inconclusive(&self, now: Moment) -> bool {
        let (before, after) = self.change(|breaker| breaker.inconclusive(now));
        before != after
    }

    /// Ejects the backend for the pause that it requested. Returns the time at which the ejection
    /// ends, if this call started or prolonged it, so that the caller logs it once.
    pub(super) fn back_off(&self, pause: Duration, now: Moment) -> Option<Moment> {
        self.change_to_ejected(now, |breaker| breaker.backed_off(now, pause))
    }

    /// Changes the breaker. Returns the time at which the ejection ends, if the change started or
    /// prolonged an ejection.
    fn change_to_ejected(&self, now: Moment, next: impl Fn(Breaker) -> Breaker) -> Option<Moment> {
        let (before, after) = self.change(next);
        match after.verdict(now) {
            Verdict::Ejected(until) if before.verdict(now) != Verdict::Ejected(until) => {
                self.ejections.fetch_add(1, Ordering::Relaxed);
                Some(until)
            }
            _ => None,
        }
    }

    /// Changes the breaker atomically. Returns the old and the new state.
    fn change(&self, next: impl Fn(Breaker) -> Breaker) -> (Breaker, Breaker) {
        let mut packed = self.breaker.load(Ordering::Relaxed);
        loop {
            let before = Breaker::unpack(packed);
            let after = next(before);
            if before == after {
                return (before, after); // The usual case, which writes nothing.
            }
            let changed = self.breaker.compare_exchange_weak(
                packed,
                after.pack(),
                Ordering::SeqCst,
                Ordering::Relaxed,
            );
            match changed {
                Ok(_) => return (before, after),
                Err(now) => packed = now,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Moment = Moment(5_000);

    #[test]
    fn slots_are_limited() {
        let stats = BackendStats::default();
        assert!(stats.try_acquire(2) && stats.try_acquire(2) && !stats.try_acquire(2));
        assert_eq!((stats.outstanding(), stats.requests()), (2, 2));
        stats.release();
        assert!(stats.try_acquire(2));
    }

    #[test]
    fn third_consecutive_failure_ejects_and_a_complete_response_resets() {
        let stats = BackendStats::default();
        for _ in 0..3 {
            assert_eq!(
                (stats.note_failed(NOW), stats.note_failed(NOW)),
                (None, None)
            );
            assert!(!stats.note_began(NOW) && !stats.note_ended(NOW));
        }
        assert_eq!(
            (stats.note_failed(NOW), stats.note_failed(NOW)),
            (None, None)
        );
        assert_eq!(stats.note_failed(NOW), Some(Moment(6_000)));
        assert_eq!(stats.note_failed(NOW), None, "already ejected");
        assert_eq!(stats.verdict(NOW), Verdict::Ejected(Moment(6_000)));
        assert!(stats.note_began(NOW));
        assert_eq!(stats.verdict(NOW), Verdict::Healthy);
        assert_eq!(stats.note_failed(NOW), Some(Moment(6_000)), "response cut");
        assert!(stats.note_ended(NOW));
        assert_eq!(stats.verdict(NOW), Verdict::Healthy);
        stats.note_latency(Duration::from_millis(5), NOW);
        assert_eq!(stats.latency(NOW), 5_000);
    }

    #[test]
    fn trial_is_claimed_by_exactly_one_caller() {
        let stats = BackendStats::default();
        assert!(!stats.claim_trial(NOW), "not ejected");
        for _ in 0..3 {
            stats.note_failed(NOW);
        }
        assert!(!stats.claim_trial(NOW), "too early");
        let later = Moment(6_000);
        assert!(stats.claim_trial(later) && !stats.claim_trial(later));
        assert_eq!(
            stats.note_failed(later),
            Some(Moment(8_000)),
            "twice as long"
        );
    }

    #[test]
    fn backend_that_comes_up_has_no_failures() {
        let stats = BackendStats::default();
        stats.set_up(true);
        let first = stats.epoch();
        for _ in 0..3 {
            stats.note_failed(NOW);
        }
        stats.set_up(true);
        assert_eq!(stats.epoch(), first, "already up");
        assert_ne!(stats.verdict(NOW), Verdict::Healthy);
        stats.set_up(false);
        stats.set_up(true);
        assert_ne!(stats.epoch(), first);
        assert_eq!(stats.verdict(NOW), Verdict::Healthy);
    }
}
