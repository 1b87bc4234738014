//! Chance that can be had again: the same seed gives the same draws.

/// An xorshift generator: plain, and good enough to choose faults.
#[derive(Clone, Debug)]
pub(crate) struct Random(u64);

impl Random {
    /// The seed of a run: `FAULT_SEED`, with the test's name and something of the caller's own, so
    /// that no two draw alike.
    pub(crate) fn of_run(part: u64) -> Self {
        let seed = std::env::var("FAULT_SEED")
            .ok()
            .and_then(|text| text.parse().ok())
            .unwrap_or(1_u64);
        let thread = std::thread::current();
        let name = thread.name().unwrap_or_default().bytes();
        let test = name.fold(0, |sum, byte| mix(sum ^ u64::from(byte)));
        Self::new(mix(seed) ^ mix(part) ^ test)
    }

    pub(crate) fn new(seed: u64) -> Self {
        // It would never leave zero.
        Self(mix(seed).max(1))
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        mix(self.0)
    }

    /// A number from zero to one less than this.
    pub(crate) fn below(&mut self, end: u64) -> u64 {
        self.next() % end.max(1)
    }

    pub(crate) fn bytes(&mut self, count: usize) -> Vec<u8> {
        (0..count).map(|_| self.next().to_le_bytes()[3]).collect()
    }
}

/// Spreads a number over all bits.
pub(crate) fn mix(number: u64) -> u64 {
    let mut mixed = number.wrapping_add(0x9e37_79b9_7f4a_7c15);
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}
