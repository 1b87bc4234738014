//! The number of client header fields that were not forwarded, by name.
//!
//! All workers count here, several times for each request. So a name that is known is counted
//! without a lock: names are added to a table and never removed.

use std::hash::BuildHasher;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use foldhash::quality::RandomState;

/// Maximum number of names that are counted apart, and of characters of each. Clients choose the
/// names, so only the first ones are.
const MOST_NAMES: usize = 64;
const LONGEST_NAME: usize = 64;
/// Places in the table: more than names, so that a search ends soon.
const PLACES: usize = 2 * MOST_NAMES;

/// Counts of dropped header fields.
#[derive(Debug)]
pub(crate) struct DroppedHeaders {
    hasher: RandomState,
    /// A name is in the first free place from the one that its hash is for.
    places: [OnceLock<Named>; PLACES],
    names: AtomicU64,
    /// Fields whose names are not counted apart.
    others: AtomicU64,
}

#[derive(Debug)]
struct Named {
    name: String,
    count: AtomicU64,
}

impl Default for DroppedHeaders {
    fn default() -> Self {
        Self {
            hasher: RandomState::default(),
            places: [const { OnceLock::new() }; PLACES],
            names: AtomicU64::new(0),
            others: AtomicU64::new(0),
        }
    }
}

impl DroppedHeaders {
    /// Counts a field with this name.
    pub(crate) fn count(&self, name: &str) {
        let counter = self.named(name).map_or(&self.others, |named| &named.count);
        counter.fetch_add(1, Ordering::Relaxed);
    }

    fn named(&self, name: &str) -> Option<&Named> {
        if name.len() > LONGEST_NAME {
            return None;
        }
        #[expect(
            clippy::cast_possible_truncation,
            reason = "a part of the hash is enough"
        )]
        let first = self.hasher.hash_one(name) as usize;
        for offset in 0..PLACES {
            let place = &self.places[first.wrapping_add(offset) % PLACES];
            let named = match place.get() {
                Some(named) => named,
                None if self.names.load(Ordering::Relaxed) >= MOST_NAMES as u64 => return None,
                // Another thread may be faster, with this name or another.
                None => place.get_or_init(|| {
                    self.names.fetch_add(1, Ordering::Relaxed);
                    Named {
                        name: name.to_owned(),
                        count: AtomicU64::new(0),
                    }
                }),
            };
            if named.name == name {
                return Some(named);
            }
        }
        None
    }

    /// Names and counts, sorted by name; those that were not counted apart are last, under an empty
    /// name.
    pub(crate) fn report(&self) -> Vec<(String, u64)> {
        let named = self.places.iter().filter_map(OnceLock::get);
        let mut report: Vec<_> = named
            .map(|named| (named.name.clone(), named.count.load(Ordering::Relaxed)))
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
    fn threads_count_names_together_and_only_the_first_ones_apart() {
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
        dropped.count(&"y".repeat(LONGEST_NAME + 1));
        for number in 0..1000 {
            dropped.count(&format!("y-{number}"));
        }
        let report = dropped.report();
        assert_eq!(report.len(), MOST_NAMES + 1);
        let others = 1001 - (MOST_NAMES as u64 - 10);
        assert_eq!(report.last(), Some(&(String::new(), others)));
        assert!(report[..MOST_NAMES].is_sorted());
    }
}
