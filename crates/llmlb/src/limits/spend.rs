//! Tokens that a key has used in the current periods of budgets, by which budgets are enforced.

use std::collections::BTreeMap;

use super::period::PeriodId;
use crate::config::Period;

/// Maximum number of periods whose spend is kept: the current day and month, and the periods in
/// front of them, in which requests that are still in flight have begun.
const MAX_PERIODS: usize = 6;
/// Maximum number of other servers whose spend is kept apart. The spend of further servers is added
/// up, which bounds memory.
const MAX_SERVERS: usize = 256;

/// Number of tokens that one key has used, by period.
///
/// The spend of each server is kept apart. It only grows within a period, so two sources of the
/// same figure are merged by their maximum, and no token counts twice.
#[derive(Debug, Default)]
pub(super) struct Spend(BTreeMap<PeriodId, PeriodSpend>);

/// Number of tokens that one key has used in one period.
#[derive(Debug, Default)]
struct PeriodSpend {
    /// Number of tokens in usage records of this server.
    own: u64,
    /// Number of tokens in usage records of other servers, by their names. The empty name stands
    /// for records without a server's name, which other programs stage.
    others: BTreeMap<Box<str>, u64>,
    /// Sum of `others`.
    sum_of_others: u64,
}

impl Spend {
    /// Returns the spend of this server in a period.
    pub(super) fn own(&self, period: PeriodId) -> u64 {
        self.0.get(&period).map_or(0, |spend| spend.own)
    }

    /// Returns the spend of all other servers and programs in a period, as far as it is known.
    pub(super) fn others(&self, period: PeriodId) -> u64 {
        self.0.get(&period).map_or(0, |spend| spend.sum_of_others)
    }

    pub(super) fn total(&self, period: PeriodId) -> u64 {
        self.own(period).saturating_add(self.others(period))
    }

    /// Adds the tokens of a usage record of this server, whose time is `time_ms`.
    pub(super) fn add(&mut self, time_ms: u64, tokens: u64) {
        for period in [Period::Day, Period::Month] {
            let spend = self.entry(PeriodId::at(period, time_ms));
            spend.own = spend.own.saturating_add(tokens);
        }
    }

    /// Merges the spend of this server as read from the data directory. That figure may lack the newest
    /// records, so a lower one never replaces the figure in memory.
    pub(super) fn merge_own(&mut self, period: PeriodId, tokens: u64) {
        let spend = self.entry(period);
        spend.own = spend.own.max(tokens);
    }

    /// Merges the spend of another server, as read from the data directory.
    pub(super) fn merge_other(&mut self, period: PeriodId, server: &str, tokens: u64) {
        let spend = self.entry(period);
        let is_full = spend.others.len() >= MAX_SERVERS && !spend.others.contains_key(server);
        let server = if is_full { "" } else { server };
        let known = match spend.others.get_mut(server) {
            Some(known) => known,
            None => spend.others.entry(server.into()).or_default(),
        };
        *known = (*known).max(tokens);
        let sum = spend.others.values().copied();
        spend.sum_of_others = sum.fold(0, u64::saturating_add);
    }

    fn entry(&mut self, period: PeriodId) -> &mut PeriodSpend {
        if self.0.len() >= MAX_PERIODS && !self.0.contains_key(&period) {
            // Forget the oldest period of the same kind: otherwise days would evict months, whose
            // spend would count as zero.
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
        assert_eq!(spend.own(day(midnight - 1)), 5);
        assert_eq!(spend.own(day(midnight)), 7);
        let month = PeriodId::at(Period::Month, midnight);
        assert_eq!(spend.own(month), 12);
    }

    #[test]
    fn records_that_are_read_again_do_not_count_twice() {
        let mut spend = Spend::default();
        let today = day(DAY_MS);
        spend.merge_own(today, 100);
        spend.add(DAY_MS, 5);
        spend.merge_own(today, 105);
        spend.merge_own(today, 100);
        for (server, tokens) in [("", 40), ("b:1", 7), ("b:1", 9), ("b:1", 8), ("", 40)] {
            spend.merge_other(today, server, tokens);
        }
        assert_eq!((spend.own(today), spend.others(today)), (105, 49));
        assert_eq!(spend.total(today), 154);
    }

    #[test]
    fn numbers_of_periods_and_servers_are_bounded() {
        let mut spend = Spend::default();
        for number in 0..1000 {
            spend.add(number * DAY_MS, 1);
            spend.merge_other(day(0), &number.to_string(), 1);
        }
        assert!(spend.0.len() <= MAX_PERIODS);
        assert_eq!(spend.own(day(999 * DAY_MS)), 1);
        let servers = spend.0.values().map(|spend| spend.others.len()).max();
        assert!(servers <= Some(MAX_SERVERS + 1));
    }
}
