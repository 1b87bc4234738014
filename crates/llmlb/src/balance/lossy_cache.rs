//! A cache of fixed size in which newer values replace older ones. All threads share it without
//! locks.

use std::sync::atomic::{AtomicU64, Ordering};

/// Number of bits of a value. The other bits of a cell are the tag of the value's hash.
pub(super) const VALUE_BITS: u32 = 40;
const VALUE: u64 = (1 << VALUE_BITS) - 1;

/// Map of fixed size from hashes to values of [`VALUE_BITS`], which identify backends. A newer value may
/// replace the value of another hash; a request whose value is lost is routed without this hint.
///
/// Each hash has one cell, which it shares with other hashes; a tag in the cell shows which hash
/// its value belongs to. Two hashes with the same cell have the same tag with a probability of one
/// in 2²³; a request is then sent to a less suitable backend, which does no harm.
pub(super) struct LossyCache {
    cells: Box<[AtomicU64]>,
}

impl LossyCache {
    /// Creates a cache with 2 to the power of `bits` cells of 8 bytes.
    pub(super) fn new(bits: u32) -> Self {
        let cells = std::iter::repeat_with(|| AtomicU64::new(0));
        Self {
            cells: cells.take(1 << bits).collect(),
        }
    }

    /// Stores the lower [`VALUE_BITS`] of a value. The previous value of the cell is lost, even if
    /// it belongs to another hash.
    pub(super) fn put(&self, hash: u64, value: u64) {
        let (cell, tag) = self.find(hash);
        let content = tag | (value & VALUE);
        // Skip the write of an equal value: it would invalidate the cache line of other threads for
        // nothing.
        if cell.load(Ordering::Relaxed) != content {
            cell.store(content, Ordering::Relaxed);
        }
    }

    pub(super) fn get(&self, hash: u64) -> Option<u64> {
        let (cell, tag) = self.find(hash);
        let content = cell.load(Ordering::Relaxed);
        (content >> VALUE_BITS == tag >> VALUE_BITS).then_some(content & VALUE)
    }

    /// Returns the cell of a hash, and the hash's tag. The tag is stored in the upper bits of the
    /// cell to distinguish the hashes that share it, and is never 0, because 0 marks an empty cell.
    fn find(&self, hash: u64) -> (&AtomicU64, u64) {
        // The upper bits select the cell. The multiplication makes them depend on all bits of the hash.
        let mixed = hash.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let bits = self.cells.len().trailing_zeros();
        let index = mixed.checked_shr(64 - bits).unwrap_or_default();
        let index = usize::try_from(index).unwrap_or_default();
        // The index has the upper bits of `mixed`, so the tag has lower ones: two hashes in the same cell then
        // rarely have the same tag. The lowest bit of a tag is always set.
        let tag = (mixed << 32 & !VALUE) | 1 << VALUE_BITS;
        (&self.cells[index], tag)
    }
}

impl std::fmt::Debug for LossyCache {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "LossyCache({} cells)", self.cells.len())
    }
}

#[cfg(test)]
mod tests {
    use super::super::random::Random;
    use super::*;

    #[test]
    fn last_value_of_a_hash_is_found() {
        let memory = LossyCache::new(10);
        assert_eq!((memory.get(0), memory.get(7)), (None, None));
        memory.put(7, 1);
        memory.put(0, 0);
        memory.put(7, VALUE);
        assert_eq!((memory.get(0), memory.get(7)), (Some(0), Some(VALUE)));
        assert_eq!(memory.get(8), None);
    }

    #[test]
    fn values_are_lost_but_never_confused_when_the_cache_is_full() {
        let memory = LossyCache::new(6);
        // A tag has 23 bits, so that one of these 10,000 values could be confused with probability 1/800.
        let mut random = Random::seeded(3);
        let mut hash =
            || u64::from(random.below(u32::MAX)) << 32 | u64::from(random.below(u32::MAX));
        let hashes: Vec<u64> = (0..10_000).map(|_| hash()).collect();
        for (value, hash) in (0..).zip(&hashes) {
            memory.put(*hash, value);
        }
        let known = (0..).zip(&hashes).filter(|(value, hash)| {
            let found = memory.get(**hash);
            assert!(found.is_none() || found == Some(*value));
            found.is_some()
        });
        let known = known.count();
        assert!((50..=64).contains(&known), "{known}");
    }

    #[test]
    fn consecutive_numbers_do_not_share_cells() {
        let memory = LossyCache::new(12);
        for hash in 0..1000 {
            memory.put(hash, 5);
        }
        let known = (0..1000).filter(|hash| memory.get(*hash).is_some()).count();
        assert!(known > 900, "{known}");
    }
}
