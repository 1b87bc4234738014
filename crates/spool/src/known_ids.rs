//! Bloom filters of the ids of consolidated records. They need a few bytes for each id, so that a
//! server can keep hundreds of thousands in memory.

use uuid::Uuid;

/// Maximum number of ids in one filter.
const MAX_IDS: usize = 250_000;
/// Length of a filter in 64-bit words: 33 bits for each id. One of five million unknown ids is
/// taken for a known one.
const WORDS: usize = 1 << 17;
const BITS_PER_ID: u64 = 16;

/// A set of ids that answers "certainly not known" or "perhaps known". Ids cannot be removed.
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
        if self.filters.last().is_none_or(|last| last.ids == MAX_IDS) {
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

    /// Returns `false` only for an id that was never inserted.
    pub(crate) fn may_have(&self, id: Uuid) -> bool {
        let mut filters = self.filters.iter();
        filters.any(|filter| places(id).all(|(word, bit)| filter.words[word] & bit != 0))
    }
}

/// Returns the bits of an id in a filter, each as the index of its word and a mask.
fn places(id: Uuid) -> impl Iterator<Item = (usize, u64)> {
    let (high, low) = id.as_u64_pair();
    let first = mix(high ^ mix(low));
    // An odd step keeps the hashes of an id different from each other.
    let step = mix(first) | 1;
    (0..BITS_PER_ID).map(move |number| {
        let place = first.wrapping_add(number.wrapping_mul(step));
        // The word depends on the upper half of the hash, which is mixed best and has more values
        // than there are words.
        let word = usize::try_from(place >> 32).unwrap_or_default() % WORDS;
        (word, 1 << (place >> 58))
    })
}

/// Finalizer of MurmurHash3: every bit of the input affects every bit of the result.
fn mix(number: u64) -> u64 {
    let number = (number ^ number >> 33).wrapping_mul(0xff51_afd7_ed55_8ccd);
    let number = (number ^ number >> 33).wrapping_mul(0xc4ce_b9fe_1a85_ec53);
    number ^ number >> 33
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns one of many ids that a producer makes in one millisecond and numbers consecutively.
    fn id(number: u128) -> Uuid {
        Uuid::from_u128(0x0189_0a5d_ac96_774b_bcce_0000_0000_0000 + number)
    }

    #[test]
    fn all_inserted_ids_are_known_and_few_others() {
        let mut known = KnownIds::default();
        assert!(!known.may_have(id(0)));
        let count = 2 * MAX_IDS as u128 + 1;
        (0..count).for_each(|number| known.insert(id(number)));
        assert_eq!(known.filters.len(), 3);
        assert!((0..count).all(|number| known.may_have(id(number))));
        let wrong = (count..2 * count).filter(|number| known.may_have(id(*number)));
        let wrong = wrong.count();
        assert!(wrong < 10, "{wrong}");
    }
}
