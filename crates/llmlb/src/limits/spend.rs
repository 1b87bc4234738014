//! Tokens that a key has used in the current periods.

use std::collections::BTreeMap;

use super::period::PeriodId;
use crate::config::Period;

/// Maximum number of periods whose spend is kept: the current day and month, and those in front of
/// them, in which requests that are still in flight have begun.
const MAX_PERIODS: usize = 6;

/// Tokens that one key has used, by period.
///
/// The spend of this server and that of others are kept apart. Each is a sum that only grows within
/// a period, so two sources of the same number are merged by their maximum, and nothing counts twice.
#[derive(Debug, Default)]
pub(super) struct Spend(BTreeMap<PeriodId, PeriodSpend>);

/// Tokens that one key has used in one period.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct PeriodSpend {
    /// Tokens in records of this server.
    pub(super) own: u64,
    /// Tokens in records of other servers and programs that share the data directory.
    pub(super) staged: u64,
    /// Tokens of servers with data directories of their own, as far as they are known.
    pub(super) remote: u64,
}

impl PeriodSpend {
    pub(super) fn total(self) -> u64 {
        self.own
            .saturating_add(self.staged)
            .saturating_add(self.remote)
    }
}

impl Spend {
    /// Returns the spend of a period.
    pub(super) fn of(&self, period: PeriodId) -> PeriodSpend {
        self.0.get(&period).copied().unwrap_or_default()
    }

    /// Adds tokens of a record of this server whose time is `time_ms`.
    pub(super) fn add(&mut self, time_ms: u64, tokens: u64) {
        for period in [Period::Day, Period::Month] {
            let spend = self.entry(PeriodId::at(period, time_ms));
            spend.own = spend.own.saturating_add(tokens);
        }
    }

    /// Merges what the data directory has. Records that were settled but not read yet make the own
    /// spend larger than that of the data directory.
    pub(super) fn merge_staged(&mut self, period: PeriodId, own: u64, staged: u64) {
        let spend = self.entry(period);
        spend.own = spend.own.max(own);
        spend.staged = spend.staged.max(staged);
    }

    /// Merges the spend of servers that are known only through the shared store.
    pub(super) fn merge_remote(&mut self, period: PeriodId, remote: u64) {
        let spend = self.entry(period);
        spend.remote = spend.remote.max(remote);
    }

    fn entry(&mut self, period: PeriodId) -> &mut PeriodSpend {
        if self.0.len() >= MAX_PERIODS && !self.0.contains_key(&period) {
            // Forget the oldest period of the same kind, so that a wrong clock in the past does not
            // evict the current month.
            let is_day = matches!(period, PeriodId::Day(_));
            let is_same_kind = |id: &&PeriodId| matches!(id, PeriodId::Day(_)) == is_day;
            let oldest = self.0.keys().find(is_same_kind).or(self.0.keys().next());
            if let Some(oldest) = oldest.copied() {
                self.0.remove(&oldest);
            }
        }
        self.0.entry(period).or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::super::period::DAY_MS;
    use super::*;

    fn day(time_ms: u64) -> PeriodId {
        PeriodId::at(Period::Day, time_ms)
    }

    #[test]
    fn tokens_count_in_the_periods_of_their_record() {
        let mut spend = Spend::default();
        let midnight = 20_000 * DAY_MS;
        spend.add(midnight - 1, 5);
        spend.add(midnight, 7);
        assert_eq!(spend.of(day(midnight - 1)).own, 5);
        assert_eq!(spend.of(day(midnight)).own, 7);
        let month = PeriodId::at(Period::Month, midnight);
        assert_eq!(spend.of(month).own, 12);
    }

    #[test]
    fn records_that_are_read_again_do_not_count_twice() {
        let mut spend = Spend::default();
        let today = day(DAY_MS);
        spend.merge_staged(today, 100, 30);
        spend.add(DAY_MS, 5);
        spend.merge_staged(today, 105, 40);
        spend.merge_staged(today, 100, 40);
        spend.merge_remote(today, 7);
        spend.merge_remote(today, 6);
        let expected = PeriodSpend {
            own: 105,
            staged: 40,
            remote: 7,
        };
        assert_eq!((spend.of(today), expected.total()), (expected, 152));
    }

    #[test]
    fn number_of_periods_is_bounded() {
        let mut spend = Spend::default();
        for number in 0..1000 {
            spend.add(number * DAY_MS, 1);
        }
        assert!(spend.0.len() <= MAX_PERIODS);
        assert_eq!(spend.of(day(999 * DAY_MS)).own, 1);
    }
}
