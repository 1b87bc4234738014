//! Selects the better of two randomly drawn candidates. Pure: no backends, no clock.
//!
//! Two draws are enough: the busiest candidate never wins against another one, and a thousand
//! candidates cost no more than three.

use super::random::Random;

/// Maximum number of draws. After them the caller examines all candidates.
const MAX_DRAWS: usize = 8;

/// Load of a candidate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Load {
    /// Number of requests that the backend is working on.
    pub(super) outstanding: u32,
    /// Average time until a response begins, in microseconds; 0 if it is not known.
    pub(super) latency: u32,
    /// Share of the requests that the backend gets, relative to the other backends.
    pub(super) weight: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Drawn {
    Usable(Load),
    /// The candidate's trial is due: it is selected at once.
    TrialDue,
    Unusable,
}

/// Shares of the candidates in the random draws, proportional to their weights.
#[derive(Debug, Default)]
pub(super) struct Shares {
    /// Cumulative weights of the candidates. A random number below the last entry selects the first
    /// candidate whose entry is greater, so that each candidate is drawn in proportion to its
    /// weight.
    ends: Vec<u32>,
}

impl Shares {
    pub(super) fn new(weights: impl Iterator<Item = u32>) -> Self {
        let mut end = 0;
        let ends = weights.map(|weight| {
            end += weight;
            end
        });
        Self {
            ends: ends.collect(),
        }
    }

    /// Draws a candidate.
    fn draw(&self, random: &mut Random) -> Option<usize> {
        let end = *self.ends.last()?;
        Some(self.index_at(random.below(end)))
    }

    /// Draws a candidate other than `excluded`, so that two different candidates are compared.
    fn draw_other(&self, excluded: usize, random: &mut Random) -> Option<usize> {
        let start = excluded
            .checked_sub(1)
            .map_or(0, |before| self.ends[before]);
        let share = self.ends[excluded] - start;
        let rest = self.ends.last()? - share;
        if rest == 0 {
            return None;
        }
        let drawn = random.below(rest);
        Some(self.index_at(if drawn < start { drawn } else { drawn + share }))
    }

    /// Returns the index of the candidate whose share contains the drawn number.
    fn index_at(&self, number: u32) -> usize {
        self.ends.partition_point(|end| *end <= number)
    }
}

/// Draws two usable candidates and returns the index of the better one. `None` if no drawn candidate is
/// usable.
pub(super) fn pick(
    shares: &Shares,
    random: &mut Random,
    examine: impl Fn(usize) -> Drawn,
) -> Option<usize> {
    let mut best: Option<(usize, Load)> = None;
    let mut last = None;
    for _ in 0..MAX_DRAWS {
        let excluded = best.map(|(index, _)| index).or(last);
        let drawn = match excluded {
            Some(index) => shares.draw_other(index, random),
            None => shares.draw(random),
        };
        let Some(drawn) = drawn else { break };
        last = Some(drawn);
        match (examine(drawn), best) {
            (Drawn::TrialDue, _) => return Some(drawn),
            (Drawn::Usable(load), None) => best = Some((drawn, load)),
            (Drawn::Usable(load), Some((_, first))) if is_better(load, first) => {
                return Some(drawn);
            }
            (Drawn::Usable(_), Some((index, _))) => return Some(index),
            (Drawn::Unusable, _) => {}
        }
    }
    best.map(|(index, _)| index)
}

/// Number of microseconds that a comparison adds to both latencies, so that differences that no
/// client notices do not count.
const LATENCY_TOLERANCE: u64 = 20_000;
/// Maximum ratio of two latencies in a comparison. Latency depends on the prompt as well: one long
/// prompt must not keep a backend idle for minutes.
const MAX_LATENCY_RATIO: u64 = 4;

/// True if the candidate `other` is better than `first`, the best candidate that was examined
/// before.
pub(super) fn is_better(other: Load, first: Load) -> bool {
    let (other_latency, first_latency) = compared(other.latency, first.latency);
    if other.outstanding == 0 && first.outstanding == 0 {
        // Compare without the weights: the draw has respected them, and using them twice would
        // starve the lighter candidate.
        return other_latency < first_latency;
    }
    let cost = |load: Load, latency: u64, other_weight: u32| {
        (u64::from(load.outstanding) + 1) * latency * u64::from(other_weight)
    };
    cost(other, other_latency, first.weight) < cost(first, first_latency, other.weight)
}

/// Prepares two latencies for a comparison. Both become equal if one of them is unknown, or if they differ
/// by at most a quarter.
fn compared(a: u32, b: u32) -> (u64, u64) {
    if a == 0 || b == 0 {
        return (1, 1);
    }
    let (a, b) = (
        u64::from(a) + LATENCY_TOLERANCE,
        u64::from(b) + LATENCY_TOLERANCE,
    );
    if a * 4 <= b * 5 && b * 4 <= a * 5 {
        return (1, 1);
    }
    (a.min(b * MAX_LATENCY_RATIO), b.min(a * MAX_LATENCY_RATIO))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn load(outstanding: u32, milliseconds: u32, weight: u32) -> Load {
        Load {
            outstanding,
            latency: milliseconds * 1000,
            weight,
        }
    }

    fn counts(weights: &[u32], times: usize, look: impl Fn(usize) -> Drawn) -> Vec<usize> {
        let shares = Shares::new(weights.iter().copied());
        let mut random = Random::seeded(1);
        let mut counts = vec![0; weights.len()];
        for _ in 0..times {
            counts[pick(&shares, &mut random, &look).unwrap()] += 1;
        }
        counts
    }

    #[test]
    fn less_busy_candidate_is_better() {
        assert!(is_better(load(1, 0, 1), load(2, 0, 1)));
        assert!(!is_better(load(2, 0, 1), load(1, 0, 1)));
        assert!(
            !is_better(load(1, 0, 1), load(1, 0, 1)),
            "the first of two equal candidates"
        );
    }

    #[test]
    fn candidate_with_more_weight_may_be_busier() {
        assert!(is_better(load(4, 0, 3), load(1, 0, 1)), "5/3 < 2/1");
        assert!(!is_better(load(5, 0, 3), load(1, 0, 1)), "6/3 = 2/1");
        assert!(is_better(load(999, 0, 1000), load(1, 0, 1)));
    }

    #[test]
    fn faster_candidate_may_be_up_to_four_times_as_busy() {
        assert!(is_better(load(2, 100, 1), load(1, 400, 1)));
        assert!(!is_better(load(7, 1, 1), load(1, 60_000, 1)), "8 = 2 x 4");
        assert!(is_better(load(6, 1, 1), load(1, 60_000, 1)));
        assert!(is_better(load(0, 100, 1), load(0, 400, 1)), "both idle");
    }

    #[test]
    fn small_and_unknown_latency_differences_do_not_count() {
        assert!(!is_better(load(0, 1, 1), load(0, 5, 1)), "milliseconds");
        assert!(!is_better(load(1, 100, 1), load(1, 110, 1)), "a tenth");
        assert!(!is_better(load(1, 0, 1), load(1, 9000, 1)), "unknown");
        assert!(!is_better(load(1, 9000, 1), load(1, 0, 1)), "unknown");
    }

    #[test]
    fn idle_candidates_are_picked_by_weight() {
        let idle = |index: usize| Drawn::Usable(load(0, 0, [1, 3, 6][index]));
        let counts = counts(&[1, 3, 6], 100_000, idle);
        for (count, share) in counts.iter().zip([1, 3, 6]) {
            assert!(count.abs_diff(share * 10_000) < 500, "{counts:?}");
        }
    }

    #[test]
    fn busiest_candidate_is_never_picked() {
        let look = |index: usize| Drawn::Usable(load([0, 1, 9][index], 0, 1));
        let counts = counts(&[1, 1, 1], 10_000, look);
        assert_eq!(counts[2], 0, "{counts:?}");
        assert!(counts[0] > 6_000 && counts[1] > 3_000, "{counts:?}");
    }

    #[test]
    fn unusable_candidate_is_never_picked_and_one_on_trial_always() {
        let look = |index: usize| match index {
            0 => Drawn::Unusable,
            _ => Drawn::Usable(load(0, 0, 1)),
        };
        let spread = counts(&[1, 1, 1], 9_000, look);
        assert_eq!(spread[0], 0, "{spread:?}");
        assert!(spread[1].abs_diff(4_500) < 300, "{spread:?}");
        let look = |index: usize| match index {
            0 => Drawn::TrialDue,
            _ => Drawn::Usable(load(0, 0, 1)),
        };
        assert_eq!(counts(&[1, 1], 1_000, look), [1_000, 0]);
    }

    #[test]
    fn no_candidate_is_picked_if_none_is_usable() {
        let mut random = Random::seeded(1);
        let unfit = |_: usize| Drawn::Unusable;
        for count in [0, 1, 2, 50] {
            let shares = Shares::new((0..count).map(|_| 5));
            assert_eq!(pick(&shares, &mut random, unfit), None);
        }
        let one = Shares::new([5].into_iter());
        let fit = |_: usize| Drawn::Usable(load(7, 0, 5));
        assert_eq!(pick(&one, &mut random, fit), Some(0));
    }
}
