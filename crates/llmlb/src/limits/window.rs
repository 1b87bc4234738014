//! Sums of amounts over the last 60 seconds, such that no interval of 60 seconds is ever
//! undercounted.

use std::collections::VecDeque;

pub(super) const WINDOW_MS: u64 = 60_000;
/// Maximum limit for which the window is exact to the millisecond.
const MAX_FINE: u64 = 600;
/// Width of an entry for larger limits, in milliseconds. It bounds the number of entries at 602.
const COARSE_MS: u64 = 100;

/// Amounts of the last 60 seconds, such as admitted requests or used tokens.
///
/// Amounts that are close in time share an entry. An entry counts until 60 seconds after the end of
/// its time, so an amount counts up to 100 ms longer than necessary, and never shorter. For limits
/// up to 600 the entries are exact to the millisecond. Either way the memory is bounded.
#[derive(Debug, Default)]
pub(super) struct Window {
    entries: VecDeque<Entry>,
    sum: u64,
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    /// Last millisecond of the time that the entry covers.
    end: u64,
    amount: u64,
}

impl Window {
    /// Removes the amounts that are older than 60 seconds, and returns the sum of the others.
    pub(super) fn sum_at(&mut self, now: u64) -> u64 {
        while let Some(entry) = self.entries.front() {
            if entry.end + WINDOW_MS >= now {
                break;
            }
            self.sum = self.sum.saturating_sub(entry.amount);
            self.entries.pop_front();
        }
        if self.entries.is_empty() {
            // Set the sum of an empty window to 0: an addition that stopped at the maximum of the
            // type would otherwise leave a rest forever.
            self.sum = 0;
        }
        self.sum
    }

    /// Returns the sum of the amounts that are not older than 60 seconds.
    pub(super) fn peek(&self, now: u64) -> u64 {
        let counts = |entry: &&Entry| entry.end + WINDOW_MS >= now;
        let amounts = self.entries.iter().filter(counts).map(|entry| entry.amount);
        amounts.fold(0, u64::saturating_add)
    }

    /// Adds an amount to the window. `limit` is the maximum of the window, which decides the width
    /// of entries.
    pub(super) fn add(&mut self, now: u64, amount: u64, limit: u64) {
        let width = if limit <= MAX_FINE { 1 } else { COARSE_MS };
        let end = (now / width + 1).saturating_mul(width) - 1;
        self.sum = self.sum.saturating_add(amount);
        match self.entries.back_mut() {
            Some(last) if last.end >= end => last.amount = last.amount.saturating_add(amount),
            _ => self.entries.push_back(Entry { end, amount }),
        }
    }

    /// Returns the milliseconds until at least `amount` has left the window; `None` if the window
    /// has less than that in total.
    pub(super) fn wait_for(&self, now: u64, amount: u64) -> Option<u64> {
        let mut freed = 0_u64;
        for entry in &self.entries {
            freed = freed.saturating_add(entry.amount);
            if freed >= amount {
                return Some((entry.end + WINDOW_MS + 1).saturating_sub(now));
            }
        }
        None
    }

    /// Returns the milliseconds until the window is empty, when the whole limit is available again.
    pub(super) fn reset_after(&self, now: u64) -> u64 {
        self.entries
            .back()
            .map_or(0, |entry| (entry.end + WINDOW_MS + 1).saturating_sub(now))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dice::Dice;

    /// Returns the largest number of `times` that lie within any 60 seconds, both ends included.
    fn most_in_any_minute(times: &[u64]) -> usize {
        let within = |(first, start): (usize, &u64)| {
            let end = times.partition_point(|time| *time <= start + WINDOW_MS);
            end - first
        };
        times
            .iter()
            .enumerate()
            .map(within)
            .max()
            .unwrap_or_default()
    }

    /// Compares the window with a naive model, which admits a request if fewer than `limit` were
    /// admitted in the last minute.
    #[test]
    fn no_interval_of_60_seconds_has_more_than_the_limit() {
        for seed in 0..60 {
            let mut dice = Dice::new(seed);
            let limit = [1, 2, 3, 10, 64, 600, 601, 900][dice.below(8)];
            let longest = [1, 10, 300, 5000, 70_000][dice.below(5)];
            let (mut window, mut admitted, mut naive) = (Window::default(), Vec::new(), 0);
            let mut now = 1;
            for _ in 0..4000 {
                now += dice.below(longest) as u64;
                let recent = |time: &&u64| **time + WINDOW_MS >= now;
                let exact = admitted.iter().rev().take_while(recent).count() as u64;
                naive += u64::from(exact < limit);
                if window.sum_at(now) < limit {
                    window.add(now, 1, limit);
                    admitted.push(now);
                } else if limit <= MAX_FINE {
                    assert_eq!(exact, limit, "a request was refused without need");
                }
                assert!(window.entries.len() <= 602, "the memory is bounded");
            }
            assert!(most_in_any_minute(&admitted) as u64 <= limit, "seed {seed}");
            assert!(admitted.len() as u64 * 100 >= naive * 99, "seed {seed}");
        }
    }

    #[test]
    fn request_is_admitted_after_the_announced_wait_and_not_earlier() {
        let mut window = Window::default();
        window.add(1000, 1, 2);
        window.add(5000, 1, 2);
        let wait = window.wait_for(6000, 1).unwrap();
        assert_eq!(window.sum_at(6000 + wait - 1), 2);
        assert_eq!(window.sum_at(6000 + wait), 1);
        assert_eq!(window.wait_for(6000, 3), None);
        assert_eq!(window.reset_after(6000), 59_001);
    }

    #[test]
    fn window_of_a_large_limit_is_small() {
        let mut window = Window::default();
        for now in 0..60_000 {
            window.add(now, 20, 1_000_000);
        }
        assert_eq!(window.sum_at(59_999), 1_200_000);
        assert!(window.entries.len() <= 602, "{}", window.entries.len());
    }

    #[test]
    fn changed_limit_keeps_the_counted_requests() {
        let mut window = Window::default();
        window.add(10, 1, 1000);
        window.add(20, 1, 5);
        window.add(150, 1, 5);
        assert_eq!(window.sum_at(200), 3);
        assert_eq!(window.sum_at(200 + WINDOW_MS), 0);
    }

    #[test]
    fn amounts_do_not_overflow() {
        let mut window = Window::default();
        window.add(1, u64::MAX, 10);
        window.add(2, 5, 10);
        assert_eq!(window.sum_at(3), u64::MAX);
        assert_eq!(window.sum_at(3 + 2 * WINDOW_MS), 0);
    }
}
