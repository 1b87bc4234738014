//! Which of several candidates gets a request: the better of two that are drawn at random. Pure:
//! no backends, no clock.
//!
//! Two are enough: the busiest one is never taken unless both draws meet it, and with a thousand
//! candidates it costs no more than with three.

use super::random::Random;

/// How many candidates are drawn before everyone is looked at.
const MOST_DRAWS: usize = 8;

/// What counts for and against a candidate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Load {
    /// How many requests it is working on.
    pub(super) outstanding: u32,
    /// How long its answers take to begin, in microseconds; 0 if nobody knows.
    pub(super) latency: u32,
    /// Its share of the work.
    pub(super) weight: u32,
}

/// What a candidate is when it is drawn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Drawn {
    /// It can be taken.
    Fit(Load),
    /// It is to be taken at once.
    Due,
    /// It cannot be taken.
    Unfit,
}

/// The candidates, each with its share of all draws.
#[derive(Debug, Default)]
pub(super) struct Shares {
    /// Where each one's share ends.
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

    /// Draws one.
    fn draw(&self, random: &mut Random) -> Option<usize> {
        let end = *self.ends.last()?;
        Some(self.at(random.below(end)))
    }

    /// Draws one that is not this one.
    fn draw_but(&self, but: usize, random: &mut Random) -> Option<usize> {
        let start = but.checked_sub(1).map_or(0, |before| self.ends[before]);
        let share = self.ends[but] - start;
        let rest = self.ends.last()? - share;
        if rest == 0 {
            return None;
        }
        let drawn = random.below(rest);
        Some(self.at(if drawn < start { drawn } else { drawn + share }))
    }

    /// Whose share this is.
    fn at(&self, number: u32) -> usize {
        self.ends.partition_point(|end| *end <= number)
    }
}

/// Draws two that can be taken, and returns the better one. `None`: so many draws found nobody.
pub(super) fn pick(
    shares: &Shares,
    random: &mut Random,
    look: impl Fn(usize) -> Drawn,
) -> Option<usize> {
    let mut best: Option<(usize, Load)> = None;
    let mut last = None;
    for _ in 0..MOST_DRAWS {
        let not_again = best.map(|(index, _)| index).or(last);
        let drawn = match not_again {
            Some(index) => shares.draw_but(index, random),
            None => shares.draw(random),
        };
        let Some(drawn) = drawn else { break };
        last = Some(drawn);
        match (look(drawn), best) {
            (Drawn::Due, _) => return Some(drawn),
            (Drawn::Fit(load), None) => best = Some((drawn, load)),
            (Drawn::Fit(load), Some((_, first))) if is_better(load, first) => return Some(drawn),
            (Drawn::Fit(_), Some((index, _))) => return Some(index),
            (Drawn::Unfit, _) => {}
        }
    }
    best.map(|(index, _)| index)
}

/// Differences below this do not matter to whoever waits for an answer, in microseconds.
const NO_MATTER: u64 = 20_000;
/// How many times as slow a backend can count. How long an answer takes to begin depends on the
/// question as well: one long question must not keep a backend idle for minutes.
const MOST_TIMES: u64 = 4;

/// Whether another candidate is better than the one that was drawn first.
pub(super) fn is_better(other: Load, first: Load) -> bool {
    let (theirs, ours) = compared(other.latency, first.latency);
    if other.outstanding == 0 && first.outstanding == 0 {
        // The draw has respected the weights already: a second time would starve the lighter one.
        return theirs < ours;
    }
    let cost = |load: Load, latency: u64, other_weight: u32| {
        (u64::from(load.outstanding) + 1) * latency * u64::from(other_weight)
    };
    cost(other, theirs, first.weight) < cost(first, ours, other.weight)
}

/// Two latencies as they are to be compared.
fn compared(a: u32, b: u32) -> (u64, u64) {
    if a == 0 || b == 0 {
        return (1, 1);
    }
    let (a, b) = (u64::from(a) + NO_MATTER, u64::from(b) + NO_MATTER);
    if a * 4 <= b * 5 && b * 4 <= a * 5 {
        return (1, 1);
    }
    (a.min(b * MOST_TIMES), b.min(a * MOST_TIMES))
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

    /// How often each one is picked.
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
    fn the_less_busy_of_two_is_better() {
        assert!(is_better(load(1, 0, 1), load(2, 0, 1)));
        assert!(!is_better(load(2, 0, 1), load(1, 0, 1)));
        assert!(
            !is_better(load(1, 0, 1), load(1, 0, 1)),
            "in doubt the first"
        );
    }

    #[test]
    fn a_heavier_one_may_be_busier() {
        assert!(is_better(load(4, 0, 3), load(1, 0, 1)), "5/3 < 2/1");
        assert!(!is_better(load(5, 0, 3), load(1, 0, 1)), "6/3 = 2/1");
        assert!(is_better(load(999, 0, 1000), load(1, 0, 1)));
    }

    #[test]
    fn a_quicker_one_may_be_busier_but_only_so_much() {
        assert!(is_better(load(2, 100, 1), load(1, 400, 1)));
        assert!(!is_better(load(7, 1, 1), load(1, 60_000, 1)), "8 = 2 x 4");
        assert!(is_better(load(6, 1, 1), load(1, 60_000, 1)));
        assert!(is_better(load(0, 100, 1), load(0, 400, 1)), "both idle");
    }

    #[test]
    fn small_and_unknown_differences_do_not_count() {
        assert!(!is_better(load(0, 1, 1), load(0, 5, 1)), "milliseconds");
        assert!(!is_better(load(1, 100, 1), load(1, 110, 1)), "a tenth");
        assert!(!is_better(load(1, 0, 1), load(1, 9000, 1)), "unknown");
        assert!(!is_better(load(1, 9000, 1), load(1, 0, 1)), "unknown");
    }

    #[test]
    fn idle_ones_are_picked_by_their_weights() {
        let idle = |index: usize| Drawn::Fit(load(0, 0, [1, 3, 6][index]));
        let counts = counts(&[1, 3, 6], 100_000, idle);
        for (count, share) in counts.iter().zip([1, 3, 6]) {
            assert!(count.abs_diff(share * 10_000) < 500, "{counts:?}");
        }
    }

    #[test]
    fn the_busiest_of_all_is_never_picked() {
        let look = |index: usize| Drawn::Fit(load([0, 1, 9][index], 0, 1));
        let counts = counts(&[1, 1, 1], 10_000, look);
        assert_eq!(counts[2], 0, "{counts:?}");
        assert!(counts[0] > 6_000 && counts[1] > 3_000, "{counts:?}");
    }

    #[test]
    fn who_is_unfit_is_not_picked_and_who_is_due_is() {
        let look = |index: usize| match index {
            0 => Drawn::Unfit,
            _ => Drawn::Fit(load(0, 0, 1)),
        };
        let spread = counts(&[1, 1, 1], 9_000, look);
        assert_eq!(spread[0], 0, "{spread:?}");
        assert!(spread[1].abs_diff(4_500) < 300, "{spread:?}");
        let look = |index: usize| match index {
            0 => Drawn::Due,
            _ => Drawn::Fit(load(0, 0, 1)),
        };
        assert_eq!(counts(&[1, 1], 1_000, look), [1_000, 0]);
    }

    #[test]
    fn nobody_is_picked_where_nobody_is_fit() {
        let mut random = Random::seeded(1);
        let unfit = |_: usize| Drawn::Unfit;
        for count in [0, 1, 2, 50] {
            let shares = Shares::new((0..count).map(|_| 5));
            assert_eq!(pick(&shares, &mut random, unfit), None);
        }
        let one = Shares::new([5].into_iter());
        let fit = |_: usize| Drawn::Fit(load(7, 0, 5));
        assert_eq!(pick(&one, &mut random, fit), Some(0));
    }
}
