//! Which ids are remembered: certainly not this one, or perhaps. A few bits for each, however many
//! there are, so that a server can keep them in its memory.

use uuid::Uuid;

/// How many ids one filter is for.
const MOST_IDS: usize = 250_000;
/// In 64-bit words: 33 bits for each id, so that one in five million is taken for another.
const WORDS: usize = 1 << 17;
const BITS_PER_ID: u64 = 16;

/// Ids that only grow in number.
#[derive(Debug, Default)]
pub(crate) struct KnownIds {
    filters: Vec<BloomFilter>,
}

#[derive(Debug)]
struct BloomFilter {
    words: Vec<u64>,
    ids: usize,
}

impl KnownIds {
    pub(crate) fn insert(&mut self, id: Uuid) {
        if self.filters.last().is_none_or(|last| last.ids == MOST_IDS) {
            self.filters.push(BloomFilter {
                words: vec![0; WORDS],
                ids: 0,
            });
        }
        if let Some(last) = self.filters.last_mut() {
            last.ids += 1;
            for (word, bit) in places(id) {
                last.words[word] |= bit;
            }
        }
    }

    /// `false`: it was not inserted. `true`: it may have been.
    pub(crate) fn may_have(&self, id: Uuid) -> bool {
        let mut filters = self.filters.iter();
        filters.any(|filter| places(id).all(|(word, bit)| filter.words[word] & bit != 0))
    }
}

/// The bits of an id: a word, and a bit in it.
fn places(id: Uuid) -> impl Iterator<Item = (usize, u64)> {
    let (high, low) = id.as_u64_pair();
    let first = mixed(high ^ mixed(low));
    // Odd, so that it does not come back to the same bit.
    let step = mixed(first) | 1;
    (0..BITS_PER_ID).map(move |number| {
        let place = first.wrapping_add(number.wrapping_mul(step));
        // The upper bits are the better ones; there are fewer words than this.
        let word = usize::try_from(place >> 32).unwrap_or_default() % WORDS;
        (word, 1 << (place >> 58))
    })
}

/// Spreads what is in some bits over all of them.
fn mixed(number: u64) -> u64 {
    let number = (number ^ number >> 33).wrapping_mul(0xff51_afd7_ed55_8ccd);
    let number = (number ^ number >> 33).wrapping_mul(0xc4ce_b9fe_1a85_ec53);
    number ^ number >> 33
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As from one producer, who counts, in one millisecond.
    fn id(number: u128) -> Uuid {
        Uuid::from_u128(0x0189_0a5d_ac96_774b_bcce_0000_0000_0000 + number)
    }

    #[test]
    fn what_was_inserted_is_known_and_hardly_anything_else() {
        let mut known = KnownIds::default();
        assert!(!known.may_have(id(0)));
        let count = 2 * MOST_IDS as u128 + 1;
        (0..count).for_each(|number| known.insert(id(number)));
        assert_eq!(known.filters.len(), 3);
        assert!((0..count).all(|number| known.may_have(id(number))));
        let wrong = (count..2 * count).filter(|number| known.may_have(id(*number)));
        let wrong = wrong.count();
        assert!(wrong < 10, "{wrong}");
    }
}
