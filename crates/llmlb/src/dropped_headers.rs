//! Counts of client header fields that were not forwarded, by name.
//!
//! All workers count in one table, several times per request. So a name in the table is counted
//! without a lock: names are added and never removed.

use std::hash::BuildHasher;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use foldhash::quality::RandomState;

/// Maximum number of names with a counter of their own. Clients choose the names, so without a
/// limit they could exhaust memory.
const MAX_NAMES: usize = 64;
/// Maximum length in bytes of a name with a counter of its own. Longer names are counted together.
const MAX_NAME: usize = 64;
/// Number of cells in the hash table. Half of them stay empty, so that a search is short.
const CELLS: usize = 2 * MAX_NAMES;

#[derive(Debug)]
pub(crate) struct DroppedHeaders {
    hasher: RandomState,
    /// Hash table of names and counts with linear probing.
    cells: [OnceLock<HeaderCount>; CELLS],
    names: AtomicU64,
    /// Sum of the counts of fields whose names have no counter of their own, because the table is
    /// full or the name is too long.
    others: AtomicU64,
}

#[derive(Debug)]
struct HeaderCount {
    name: String,
    count: AtomicU64,
}

impl Default for DroppedHeaders {
    fn default() -> Self {
        Self {
            hasher: RandomState::default(),
            cells: [const { OnceLock::new() }; CELLS],
            names: AtomicU64::new(0),
            others: AtomicU64::new(0),
        }
    }
}

impl DroppedHeaders {
    /// Counts a client's header field with this name that was not forwarded.
    pub(crate) fn count(&self, name: &str) {
        let counter = self
            .counter(name)
            .map_or(&self.others, |counter| &counter.count);
        counter.fetch_add(1, Ordering::Relaxed);
    }

    fn counter(&self, name: &str) -> Option<&HeaderCount> {
        if name.len() > MAX_NAME {
            return None;
        }
        #[expect(
            clippy::cast_possible_truncation,
            reason = "the lower bits of the hash are enough for an index"
        )]
        let first = self.hasher.hash_one(name) as usize;
        for offset in 0..CELLS {
            let cell = &self.cells[first.wrapping_add(offset) % CELLS];
            let counter = match cell.get() {
                Some(counter) => counter,
                None if self.names.load(Ordering::Relaxed) >= MAX_NAMES as u64 => return None,
                // Another thread may fill the cell first with another name, so the name is compared
                // below.
                None => cell.get_or_init(|| {
                    self.names.fetch_add(1, Ordering::Relaxed);
                    HeaderCount {
                        name: name.to_owned(),
                        count: AtomicU64::new(0),
                    }
                }),
            };
            if counter.name == name {
                return Some(counter);
            }
        }
        None
    }

    /// Returns names and counts, sorted by name. The sum for names without a counter of their own
    /// is last, under an empty name.
    pub(crate) fn report(&self) -> Vec<(String, u64)> {
        let counters = self.cells.iter().filter_map(OnceLock::get);
        let mut report: Vec<_> = counters
            .map(|counter| (counter.name.clone(), counter.count.load(Ordering::Relaxed)))
            .collect();
        report.sort_unstable();
        let others = self.others.load(Ordering::Relaxed);
        if others > 0 {
            report.push((String::new(), others));
        }
        report
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    #[test]
    fn threads_share_counters_and_only_the_first_names_have_their_own() {
        let dropped = DroppedHeaders::default();
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for round in 0..50 {
                        for number in 0..10 {
                            dropped.count(&format!("x-{number}"));
                        }
                        dropped.count(&format!("x-{}", round % 2));
                    }
                });
            }
        });
        let report: BTreeMap<_, _> = dropped.report().into_iter().collect();
        assert_eq!(report.len(), 10);
        assert_eq!(
            (report["x-0"], report["x-1"], report["x-2"]),
            (300, 300, 200)
        );
        dropped.count(&"y".repeat(MAX_NAME + 1));
        for number in 0..1000 {
            dropped.count(&format!("y-{number}"));
        }
        let report = dropped.report();
        assert_eq!(report.len(), MAX_NAMES + 1);
        let others = 1001 - (MAX_NAMES as u64 - 10);
        assert_eq!(report.last(), Some(&(String::new(), others)));
        assert!(report[..MAX_NAMES].is_sorted());
    }
}
