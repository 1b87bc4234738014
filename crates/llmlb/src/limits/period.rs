//! Periods of budgets: days and months in UTC.

use crate::config::Period;

pub(super) const DAY_MS: u64 = 24 * 3600 * 1000;

/// A day or a month in UTC, in which a budget counts tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum PeriodId {
    /// Days since 1970-01-01.
    Day(u64),
    /// Number of the month, counted from January of the year 0.
    Month(u64),
}

impl PeriodId {
    /// Returns the period at a time, in milliseconds since 1970.
    pub(super) fn at(period: Period, time_ms: u64) -> Self {
        let day = time_ms / DAY_MS;
        match period {
            Period::Day => Self::Day(day),
            Period::Month => Self::Month(month_of(day)),
        }
    }

    /// Returns the time at which the period ends, in milliseconds since 1970.
    pub(super) fn end_ms(self) -> u64 {
        match self {
            Self::Day(day) => (day + 1).saturating_mul(DAY_MS),
            Self::Month(month) => first_day_of(month + 1).saturating_mul(DAY_MS),
        }
    }

    /// Returns the time at which the period begins, in milliseconds since 1970.
    pub(super) fn start_ms(self) -> u64 {
        match self {
            Self::Day(day) => day.saturating_mul(DAY_MS),
            Self::Month(month) => first_day_of(month).saturating_mul(DAY_MS),
        }
    }
}

/// Returns the number of a day, in days since 1970, from its name, such as `2026-11-16`.
pub(super) fn day_of_name(name: &str) -> Option<u64> {
    let date: jiff::civil::Date = name.parse().ok()?;
    let time = date.to_zoned(jiff::tz::TimeZone::UTC).ok()?;
    u64::try_from(time.timestamp().as_millisecond() / i64::try_from(DAY_MS).ok()?).ok()
}

/// Returns the month of a day: 12 × year + month. The calculation is that of Howard Hinnant's
/// `civil_from_days`, whose years begin in March.
fn month_of(day: u64) -> u64 {
    let day = day + 719_468;
    let (era, day_of_era) = (day / 146_097, day % 146_097);
    let year = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year + year / 4 - year / 100);
    let month = (5 * day_of_year + 2) / 153;
    // Months of the years that begin in March: month 10 is January of the next year.
    (era * 400 + year) * 12 + month + 2
}

/// Returns the first day of a month, in days since 1970.
fn first_day_of(month: u64) -> u64 {
    let from_march = month.saturating_sub(2);
    let (year, month) = (from_march / 12, from_march % 12);
    let (era, year_of_era) = (year / 400, year % 400);
    let day_of_year = (153 * month + 2) / 5;
    let day_of_era = year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + day_of_year;
    (era * 146_097 + day_of_era).saturating_sub(719_468)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_day_is_in_the_month_of_the_calendar() {
        let mut date = jiff::civil::date(1970, 1, 1);
        for day in 0..200_000 {
            let month = u64::from(date.year().unsigned_abs()) * 12
                + u64::from(date.month().unsigned_abs())
                - 1;
            let id = PeriodId::at(Period::Month, day * DAY_MS + 5);
            assert_eq!(id, PeriodId::Month(month), "{date}");
            assert!(id.start_ms() <= day * DAY_MS && id.end_ms() > day * DAY_MS);
            if date.day() == 1 {
                assert_eq!(id.start_ms(), day * DAY_MS, "{date}");
            }
            if day % 1000 == 0 {
                assert_eq!(day_of_name(&date.to_string()), Some(day));
            }
            date = date.tomorrow().unwrap();
        }
        assert_eq!(day_of_name("garbage"), None);
    }

    #[test]
    fn day_ends_at_midnight_utc() {
        let id = PeriodId::at(Period::Day, 3 * DAY_MS - 1);
        assert_eq!((id.start_ms(), id.end_ms()), (2 * DAY_MS, 3 * DAY_MS));
    }
}
