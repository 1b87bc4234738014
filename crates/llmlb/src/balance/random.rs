//! Fast random numbers. They are predictable, so no secret may depend on them.

use fastrand::Rng;

#[derive(Debug)]
pub(super) struct Random(Rng);

impl Random {
    /// Returns a source that yields the same numbers for the same seed, so that tests are
    /// repeatable.
    #[cfg(test)]
    pub(super) fn seeded(seed: u64) -> Self {
        Self(Rng::with_seed(seed))
    }

    /// Calls `run` with a new source, which is seeded by this thread's random number generator.
    pub(super) fn with_thread_local<T>(run: impl FnOnce(&mut Self) -> T) -> T {
        run(&mut Self(Rng::new()))
    }

    /// Returns a random number below `end`, or 0 if `end` is 0.
    pub(super) fn below(&mut self, end: u32) -> u32 {
        self.0.u32(..end.max(1))
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
        assert_eq!(random.below(0), 0);
    }

    #[test]
    fn thread_gets_different_numbers() {
        let draw = || Random::with_thread_local(|random| random.below(u32::MAX));
        let (a, b, c) = (draw(), draw(), draw());
        assert!(a != b && b != c && a != c);
    }
}
