//! Histograms of times. Pure: callers pass the times and hold the lock.

use std::time::Duration;

/// Number of buckets of every histogram, without the one for all longer times.
pub(super) const BUCKETS: usize = 14;

/// Upper bounds of buckets, in microseconds.
pub(super) type Bounds = [u64; BUCKETS];

/// Duration of requests: embeddings take milliseconds, long responses minutes.
pub(super) const DURATION: Bounds = [
    10_000,
    50_000,
    100_000,
    250_000,
    500_000,
    1_000_000,
    2_500_000,
    5_000_000,
    10_000_000,
    20_000_000,
    40_000_000,
    80_000_000,
    160_000_000,
    320_000_000,
];

/// Time to the first token: a cached prompt takes milliseconds, a long one on a busy server a minute.
pub(super) const FIRST_TOKEN: Bounds = [
    10_000,
    25_000,
    50_000,
    100_000,
    200_000,
    400_000,
    800_000,
    1_600_000,
    3_200_000,
    6_400_000,
    12_800_000,
    25_600_000,
    60_000_000,
    120_000_000,
];

/// Time per output token: 400 tokens a second to 1 token a second.
pub(super) const OUTPUT_TOKEN: Bounds = [
    2_500, 5_000, 10_000, 15_000, 20_000, 30_000, 40_000, 60_000, 80_000, 100_000, 150_000,
    250_000, 500_000, 1_000_000,
];

/// Time in the queue: most requests do not wait.
pub(super) const QUEUE: Bounds = [
    1_000, 5_000, 10_000, 50_000, 100_000, 250_000, 500_000, 1_000_000, 2_000_000, 5_000_000,
    10_000_000, 20_000_000, 30_000_000, 60_000_000,
];

/// Counts of times by bucket. The bounds are passed by the caller, so that a histogram has a fixed size and is
/// copied without allocation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Histogram {
    /// Counts by bucket. The last one counts times beyond all bounds.
    buckets: [u64; BUCKETS + 1],
    /// Sum of all times, in microseconds.
    sum: u64,
}

impl Histogram {
    pub(super) fn observe(&mut self, bounds: &Bounds, time: Duration) {
        let micros = u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
        let index = bounds.partition_point(|bound| *bound < micros);
        self.buckets[index] += 1;
        self.sum = self.sum.saturating_add(micros);
    }

    pub(super) fn merge(&mut self, other: &Self) {
        for (count, more) in self.buckets.iter_mut().zip(other.buckets) {
            *count += more;
        }
        self.sum = self.sum.saturating_add(other.sum);
    }

    /// Returns the number of times that are at most as long as each bound, and the number of all times.
    pub(super) fn cumulative(&self) -> [u64; BUCKETS + 1] {
        let mut total = 0;
        self.buckets.map(|count| {
            total += count;
            total
        })
    }

    /// Sum of all times, in microseconds.
    pub(super) fn sum_micros(&self) -> u64 {
        self.sum
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_is_counted_in_the_first_bucket_that_has_room_for_it() {
        let mut histogram = Histogram::default();
        for micros in [0, 10_000, 10_001, 320_000_000, 320_000_001] {
            histogram.observe(&DURATION, Duration::from_micros(micros));
        }
        let counts = histogram.cumulative();
        assert_eq!((counts[0], counts[1]), (2, 3));
        assert_eq!((counts[BUCKETS - 1], counts[BUCKETS]), (4, 5));
        assert_eq!(histogram.sum_micros(), 640_020_002);
    }

    #[test]
    fn merged_histogram_has_the_times_of_both() {
        let (mut one, mut other) = (Histogram::default(), Histogram::default());
        one.observe(&QUEUE, Duration::ZERO);
        other.observe(&QUEUE, Duration::from_secs(3600));
        one.merge(&other);
        assert_eq!(one.cumulative()[0], 1);
        assert_eq!(one.cumulative()[BUCKETS], 2);
        assert_eq!(one.sum_micros(), 3_600_000_000);
    }

    #[test]
    fn bounds_increase() {
        for bounds in [DURATION, FIRST_TOKEN, OUTPUT_TOKEN, QUEUE] {
            assert!(bounds.is_sorted_by(|one, next| one < next), "{bounds:?}");
        }
    }
}
