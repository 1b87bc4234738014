//! Random numbers, cheap ones: nothing here is a secret.

use std::cell::Cell;
use std::hash::{BuildHasher, RandomState};

thread_local! {
    static STATE: Cell<u64> = Cell::new(RandomState::new().hash_one(0));
}

/// A source of random numbers (wyrand).
#[derive(Debug)]
pub(super) struct Random(u64);

impl Random {
    /// Always the same numbers for the same seed.
    #[cfg(test)]
    pub(super) fn seeded(seed: u64) -> Self {
        Self(seed)
    }

    /// Runs with this thread's numbers. They go on where they stopped.
    pub(super) fn of_this_thread<T>(run: impl FnOnce(&mut Self) -> T) -> T {
        // A thread that is ending has none any more; then any will do.
        let seed = STATE.try_with(Cell::get).unwrap_or_default();
        let mut random = Self(seed);
        let result = run(&mut random);
        let _ = STATE.try_with(|state| state.set(random.0));
        result
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0xa076_1d64_78bd_642f);
        let product = u128::from(self.0) * u128::from(self.0 ^ 0xe703_7ed1_a0b4_28db);
        #[expect(clippy::cast_possible_truncation, reason = "the two halves")]
        {
            (product >> 64) as u64 ^ product as u64
        }
    }

    /// One of the numbers below this, all equally likely as far as anyone can tell.
    pub(super) fn below(&mut self, end: u32) -> u32 {
        let random = self.next() >> 32;
        ((random * u64::from(end)) >> 32) as u32
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_number_below_the_end_comes_about_as_often() {
        let mut random = Random::seeded(7);
        let mut seen = [0_u32; 10];
        for _ in 0..100_000 {
            seen[random.below(10) as usize] += 1;
        }
        for count in seen {
            assert!((9_500..10_500).contains(&count), "{seen:?}");
        }
        assert_eq!(random.below(1), 0);
    }

    #[test]
    fn a_thread_does_not_get_the_same_number_again_and_again() {
        let draw = || Random::of_this_thread(Random::next);
        let (a, b, c) = (draw(), draw(), draw());
        assert!(a != b && b != c && a != c);
    }
}
