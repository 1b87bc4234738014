//! Fast random numbers. They are predictable, so no secret may depend on them.

use std::cell::Cell;
use std::hash::{BuildHasher, RandomState};

thread_local! {
    static STATE: Cell<u64> = Cell::new(RandomState::new().hash_one(0));
}

/// A source of random numbers (wyrand).
#[derive(Debug)]
pub(super) struct Random(u64);

impl Random {
    /// A source that yields the same numbers for the same seed.
    #[cfg(test)]
    pub(super) fn seeded(seed: u64) -> Self {
        Self(seed)
    }

    /// Calls `run` with the source of this thread, which continues where the last call stopped.
    pub(super) fn with_thread_local<T>(run: impl FnOnce(&mut Self) -> T) -> T {
        // A thread that is ending has no state. Any seed will do there.
        let seed = STATE.try_with(Cell::get).unwrap_or_default();
        let mut random = Self(seed);
        let result = run(&mut random);
        let _ = STATE.try_with(|state| state.set(random.0));
        result
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0xa076_1d64_78bd_642f);
        let product = u128::from(self.0) * u128::from(self.0 ^ 0xe703_7ed1_a0b4_28db);
        #[expect(
            clippy::cast_possible_truncation,
            reason = "wyrand combines the two halves of the product"
        )]
        {
            (product >> 64) as u64 ^ product as u64
        }
    }

    /// A number below `end`. The bias is negligible for the sizes used here.
    pub(super) fn below(&mut self, end: u32) -> u32 {
        let random = self.next() >> 32;
        ((random * u64::from(end)) >> 32) as u32
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_below_the_end_are_equally_likely() {
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
    fn thread_gets_different_numbers() {
        let draw = || Random::with_thread_local(Random::next);
        let (a, b, c) = (draw(), draw(), draw());
        assert!(a != b && b != c && a != c);
    }
}
