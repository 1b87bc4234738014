//! Reproducible random numbers for tests and fuzz targets: the same seed yields the same sequence,
//! so that a failure can be repeated.

use fastrand::Rng;

/// Seeded generator.
#[derive(Debug)]
pub(crate) struct Dice(Rng);

impl Dice {
    pub(crate) fn new(seed: u64) -> Self {
        Self(Rng::with_seed(seed))
    }

    /// Returns a random number below `sides`, which must not be 0.
    pub(crate) fn below(&mut self, sides: usize) -> usize {
        self.0.usize(..sides)
    }

    #[cfg(test)]
    pub(crate) fn pick<'a, T: ?Sized>(&mut self, things: &[&'a T]) -> &'a T {
        things[self.below(things.len())]
    }

    /// Splits bytes into pieces of random lengths, some of them empty.
    pub(crate) fn pieces<'a>(&mut self, mut whole: &'a [u8], longest: usize) -> Vec<&'a [u8]> {
        let mut pieces = Vec::new();
        while !whole.is_empty() {
            let (piece, rest) = whole.split_at(self.below(longest + 1).min(whole.len()));
            pieces.push(piece);
            whole = rest;
        }
        pieces
    }
}

/// Returns the input split in several ways: whole, byte by byte, in two, in pieces of random
/// lengths. A parser must yield the same result for all of them.
pub(crate) fn split(data: &[u8]) -> Vec<Vec<&[u8]>> {
    let mut dice = Dice::new(data.len() as u64);
    let mut ways = vec![vec![data]];
    if data.len() <= 4096 {
        ways.push(data.chunks(1).collect());
    }
    let cuts = if data.len() <= 64 { data.len() } else { 8 };
    for number in 0..cuts {
        let at = if cuts == data.len() {
            number
        } else {
            dice.below(data.len())
        };
        ways.push(vec![&data[..at], &data[at..]]);
    }
    for longest in [3, 30, 300] {
        if data.len() <= 100 * longest {
            ways.push(dice.pieces(data, longest));
        }
    }
    ways
}
