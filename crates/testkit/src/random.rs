//! Random numbers that can be repeated: the same seed gives the same numbers.

use fastrand::Rng;

/// Seeded generator.
#[derive(Clone, Debug)]
pub struct Random(Rng);

impl Random {
    /// Returns a generator for one part of the calling test. The seed is `FAULT_SEED`, mixed with the
    /// name of the test and the part, so that no two sequences are equal.
    pub fn of_run(part: u64) -> Self {
        let seed = std::env::var("FAULT_SEED")
            .ok()
            .and_then(|text| text.parse().ok())
            .unwrap_or(1_u64);
        let thread = std::thread::current();
        let name = thread.name().unwrap_or_default().bytes();
        let test = name.fold(0, |sum, byte| mix(sum ^ u64::from(byte)));
        Self::new(mix(seed) ^ mix(part) ^ test)
    }

    /// Returns a generator with this seed.
    pub fn new(seed: u64) -> Self {
        Self(Rng::with_seed(seed))
    }

    /// Returns the next number.
    #[expect(clippy::should_implement_trait, reason = "the sequence has no end")]
    pub fn next(&mut self) -> u64 {
        self.0.u64(..)
    }

    /// Returns a random number that is at least 0 and below `end`.
    pub fn below(&mut self, end: u64) -> u64 {
        self.0.u64(..end.max(1))
    }

    /// Returns this number of random bytes.
    pub fn bytes(&mut self, count: usize) -> Vec<u8> {
        let mut bytes = vec![0; count];
        self.0.fill(&mut bytes);
        bytes
    }
}

/// Mixes the bits of a number, so that similar numbers give unrelated results.
pub fn mix(number: u64) -> u64 {
    let mut mixed = number.wrapping_add(0x9e37_79b9_7f4a_7c15);
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}
