//! State of a backend that changes with every request: counts, latency, failures. Every thread may
//! read and write it at any time.

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
    /// Some endpoints count as missing there.
    lacks_any: AtomicBool,
    /// Number of times the backend came up. Its prefix cache is empty after each of them.
    epochs: AtomicU16,
    outstanding: AtomicU32,
    requests: AtomicU64,
    /// A packed [`Latency`].
    latency: AtomicU64,
    /// A packed [`Breaker`].
    breaker: AtomicU64,
}

impl BackendStats {
    pub(super) fn is_up(&self) -> bool {
        self.is_up.load(Ordering::Relaxed)
    }

    /// It came up, or went down.
    pub(super) fn set_up(&self, is_up: bool) {
        if is_up && !self.is_up() {
            self.epochs.fetch_add(1, Ordering::Relaxed);
            // Whatever failed before, it is another one now.
            self.breaker.store(0, Ordering::Relaxed);
        }
        self.is_up.store(is_up, Ordering::SeqCst);
    }

    /// True if it may lack endpoints. Nearly always false, and then nothing else is looked at.
    pub(super) fn lacks_any(&self) -> bool {
        self.lacks_any.load(Ordering::Relaxed)
    }

    pub(super) fn set_lacks_any(&self, lacks_any: bool) {
        self.lacks_any.store(lacks_any, Ordering::Relaxed);
    }

    /// Number of the current epoch.
    pub(super) fn epoch(&self) -> u16 {
        self.epochs.load(Ordering::Relaxed)
    }

    pub(super) fn outstanding(&self) -> u32 {
        self.outstanding.load(Ordering::Relaxed)
    }

    pub(super) fn requests(&self) -> u64 {
        self.requests.load(Ordering::Relaxed)
    }

    pub(super) fn latency(&self, now: Moment) -> u32 {
        Latency::unpack(self.latency.load(Ordering::Relaxed)).now(now)
    }

    pub(super) fn verdict(&self, now: Moment) -> Verdict {
        match self.breaker.load(Ordering::Relaxed) {
            0 => Verdict::Sound, // So it is nearly always.
            packed => Breaker::unpack(packed).verdict(now),
        }
    }

    /// Takes a place, unless so many are taken.
    pub(super) fn occupy(&self, limit: u32) -> bool {
        // Sequentially consistent with whoever looks for waiters after `release`.
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

    /// Gives a place back.
    pub(super) fn release(&self) {
        self.outstanding.fetch_sub(1, Ordering::SeqCst);
    }

    /// Claims the single request that tries an ejected backend again. True for one caller only.
    pub(super) fn claim_trial(&self, now: Moment) -> bool {
        let packed = self.breaker.load(Ordering::Relaxed);
        let breaker = Breaker::unpack(packed);
        breaker.verdict(now) == Verdict::Due
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

    /// The first byte of what was asked for came after so long.
    pub(super) fn took(&self, first_byte: Duration, now: Moment) {
        let packed = self.latency.load(Ordering::Relaxed);
        let latency = Latency::unpack(packed).after(first_byte, now);
        // Of two that come at the same time one may be lost: it is an average.
        self.latency.store(latency.pack(), Ordering::Relaxed);
    }

    /// An answer began. Says whether the backend was ejected until now.
    pub(super) fn began(&self, now: Moment) -> bool {
        let (before, _) = self.change(|breaker| breaker.began(now));
        before.verdict(now) != Verdict::Sound
    }

    /// Nothing failed lately.
    pub(super) fn is_well(&self) -> bool {
        self.breaker.load(Ordering::Relaxed) == 0
    }

    /// An answer came to its end. Says whether the backend was ejected until now.
    pub(super) fn ended(&self, now: Moment) -> bool {
        let (before, _) = self.change(|breaker| breaker.ended(now));
        before.verdict(now) != Verdict::Sound
    }

    /// A request failed. Says until when the backend is ejected, if that is new.
    pub(super) fn failed(&self, now: Moment) -> Option<Moment> {
        self.ejected(now, |breaker| breaker.failed(now))
    }

    /// Ejects the backend. Returns until when, if that is new.
    pub(super) fn eject(&self, now: Moment) -> Option<Moment> {
        self.ejected(now, |breaker| breaker.ejected(now))
    }

    /// A response proved neither a success nor a failure. True if the next request may now try a
    /// backend that is ejected.
    pub(super) fn inconclusive(&self, now: Moment) -> bool {
        let (before, after) = self.change(|breaker| breaker.inconclusive(now));
        before != after
    }

    /// It wants no requests for so long. Says until when the backend is ejected, if that is new.
    pub(super) fn rests(&self, long: Duration, now: Moment) -> Option<Moment> {
        self.ejected(now, |breaker| breaker.rests(now, long))
    }

    fn ejected(&self, now: Moment, next: impl Fn(Breaker) -> Breaker) -> Option<Moment> {
        let (before, after) = self.change(next);
        match after.verdict(now) {
            Verdict::Ejected(until) if before.verdict(now) != Verdict::Ejected(until) => {
                Some(until)
            }
            _ => None,
        }
    }

    /// What it was, and what it is now.
    fn change(&self, next: impl Fn(Breaker) -> Breaker) -> (Breaker, Breaker) {
        let mut packed = self.breaker.load(Ordering::Relaxed);
        loop {
            let before = Breaker::unpack(packed);
            let after = next(before);
            if before == after {
                return (before, after); // So it is nearly always: nothing is written.
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
    fn no_more_places_are_taken_than_there_are() {
        let stats = BackendStats::default();
        assert!(stats.occupy(2) && stats.occupy(2) && !stats.occupy(2));
        assert_eq!((stats.outstanding(), stats.requests()), (2, 2));
        stats.release();
        assert!(stats.occupy(2));
    }

    #[test]
    fn the_third_failure_in_a_row_is_told_and_an_answer_makes_up_for_all() {
        let stats = BackendStats::default();
        for _ in 0..3 {
            assert_eq!((stats.failed(NOW), stats.failed(NOW)), (None, None));
            assert!(!stats.began(NOW) && !stats.ended(NOW));
        }
        assert_eq!((stats.failed(NOW), stats.failed(NOW)), (None, None));
        assert_eq!(stats.failed(NOW), Some(Moment(6_000)));
        assert_eq!(stats.failed(NOW), None, "that is known");
        assert_eq!(stats.verdict(NOW), Verdict::Ejected(Moment(6_000)));
        assert!(stats.began(NOW));
        assert_eq!(stats.verdict(NOW), Verdict::Sound);
        assert_eq!(stats.failed(NOW), Some(Moment(6_000)), "it did not end");
        assert!(stats.ended(NOW));
        assert_eq!(stats.verdict(NOW), Verdict::Sound);
        stats.took(Duration::from_millis(5), NOW);
        assert_eq!(stats.latency(NOW), 5_000);
    }

    #[test]
    fn only_one_tries_a_backend_that_is_due() {
        let stats = BackendStats::default();
        assert!(!stats.claim_trial(NOW), "it is sound");
        for _ in 0..3 {
            stats.failed(NOW);
        }
        assert!(!stats.claim_trial(NOW), "it is too early");
        let later = Moment(6_000);
        assert!(stats.claim_trial(later) && !stats.claim_trial(later));
        assert_eq!(stats.failed(later), Some(Moment(8_000)), "twice as long");
    }

    #[test]
    fn a_new_life_begins_without_a_past() {
        let stats = BackendStats::default();
        stats.set_up(true);
        let first = stats.epoch();
        for _ in 0..3 {
            stats.failed(NOW);
        }
        stats.set_up(true);
        assert_eq!(stats.epoch(), first, "it was up before");
        assert_ne!(stats.verdict(NOW), Verdict::Sound);
        stats.set_up(false);
        stats.set_up(true);
        assert_ne!(stats.epoch(), first);
        assert_eq!(stats.verdict(NOW), Verdict::Sound);
    }
}
