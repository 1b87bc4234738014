//! Parser for the times in `--since` and `--until`: `24h`, `7d`, `today`, `2026-11-01`. Days are
//! those of the time zone of `--tz`, which is known only after all arguments are parsed.

use std::time::{Duration, SystemTime};

use jiff::civil::{Date, DateTime};
use jiff::{Timestamp, ToSpan};

use super::zone::Zone;
use crate::config::span;

const YEARS: Duration = Duration::from_secs(10 * 366 * 24 * 3600);

/// Parsed value of `--since` or `--until`: a point in time, or a day or month.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::cli::usage) enum When {
    Ago(Duration),
    Today,
    Yesterday,
    /// The days from the first date up to the second, which is not included.
    Days(Date, Date),
    At(Timestamp),
    /// A date and time that a clock in the time zone of `--tz` shows.
    Local(DateTime),
}

impl When {
    pub(in crate::cli::usage) fn parse(text: &str) -> Result<Self, String> {
        let word = match text {
            "now" => Some(Self::Ago(Duration::ZERO)),
            "today" => Some(Self::Today),
            "yesterday" => Some(Self::Yesterday),
            _ => None,
        };
        let ago = || span(text, &(Duration::ZERO..=YEARS)).ok().map(Self::Ago);
        word.or_else(ago)
            .or_else(|| Self::day(text))
            .or_else(|| Self::month(text))
            .or_else(|| text.parse().ok().map(Self::At))
            .or_else(|| Self::local(text))
            .ok_or_else(|| {
                format!(
                    "\"{}\" is not a time; allowed: 24h, 7d, today, yesterday, 2026-11-01, 2026-11, \
                     2026-11-01T13:00, 2026-11-01T13:00Z",
                    text.escape_debug()
                )
            })
    }

    /// Returns the start and the end (exclusive) in the time zone of `--tz`. Both are equal for a
    /// point in time. `None` for a time beyond the years that the calendar supports.
    pub(in crate::cli::usage) fn resolve(
        self,
        zone: &Zone,
        now: Timestamp,
    ) -> Option<(Timestamp, Timestamp)> {
        let today = zone.local(now).date();
        let moment = |time: Timestamp| Some((time, time));
        match self {
            Self::Ago(ago) => moment(now.checked_sub(ago).ok()?),
            Self::At(time) => moment(time),
            Self::Local(time) => moment(zone.moment(time)?),
            Self::Today => Self::Days(today, today.tomorrow().ok()?).resolve(zone, now),
            Self::Yesterday => Self::Days(today.yesterday().ok()?, today).resolve(zone, now),
            Self::Days(first, next) => Some((zone.start_of(first)?, zone.start_of(next)?)),
        }
    }

    /// Parses a day such as `2026-11-01`.
    fn day(text: &str) -> Option<Self> {
        let day: Date = (text.len() == 10).then(|| text.parse().ok())??;
        Some(Self::Days(day, day.tomorrow().ok()?))
    }

    /// Parses a month such as `2026-11`.
    fn month(text: &str) -> Option<Self> {
        let first: Date = (text.len() == 7).then(|| format!("{text}-01").parse().ok())??;
        Some(Self::Days(first, first.checked_add(1.month()).ok()?))
    }

    /// Parses a time without an offset, such as `2026-11-01T13:00`.
    fn local(text: &str) -> Option<Self> {
        (text.len() >= 13).then(|| text.parse().ok().map(Self::Local))?
    }
}

/// Formats a time to the minute, and midnight as the date alone.
pub(super) fn in_words(time: SystemTime, zone: &Zone) -> String {
    let Ok(time) = Timestamp::try_from(time) else {
        return "?".to_owned();
    };
    let time = zone.local(time);
    let (date, hour, minute) = (time.date(), time.hour(), time.minute());
    match (hour, minute) {
        (0, 0) => date.to_string(),
        _ => format!("{date} {hour:02}:{minute:02}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn resolve(text: &str, zone: &str) -> Result<(String, String), String> {
        let now = "2026-11-16T05:30:00Z".parse().unwrap();
        let zone = Zone::parse(zone).unwrap();
        let (start, end) = When::parse(text)?.resolve(&zone, now).unwrap();
        Ok((start.to_string(), end.to_string()))
    }

    #[test]
    fn every_documented_form_is_parsed() {
        for (text, start, end) in [
            ("24h", "2026-11-15T05:30:00Z", "2026-11-15T05:30:00Z"),
            ("7d", "2026-11-09T05:30:00Z", "2026-11-09T05:30:00Z"),
            ("90m", "2026-11-16T04:00:00Z", "2026-11-16T04:00:00Z"),
            ("now", "2026-11-16T05:30:00Z", "2026-11-16T05:30:00Z"),
            ("today", "2026-11-16T00:00:00Z", "2026-11-17T00:00:00Z"),
            ("yesterday", "2026-11-15T00:00:00Z", "2026-11-16T00:00:00Z"),
            ("2026-11-01", "2026-11-01T00:00:00Z", "2026-11-02T00:00:00Z"),
            ("2024-02", "2024-02-01T00:00:00Z", "2024-03-01T00:00:00Z"),
            (
                "2026-11-01T13:00",
                "2026-11-01T13:00:00Z",
                "2026-11-01T13:00:00Z",
            ),
            (
                "2026-11-01T13:00Z",
                "2026-11-01T13:00:00Z",
                "2026-11-01T13:00:00Z",
            ),
            (
                "2026-11-01T13:00+02:00",
                "2026-11-01T11:00:00Z",
                "2026-11-01T11:00:00Z",
            ),
        ] {
            let expected = Ok((start.to_owned(), end.to_owned()));
            assert_eq!(resolve(text, "UTC"), expected, "{text}");
        }
    }

    #[test]
    fn days_and_months_are_those_of_the_zone() {
        for (text, zone, start, end) in [
            // The day on which summer time ends has 25 hours, and its month is longer by an hour.
            (
                "2026-10-25",
                "Europe/Berlin",
                "2026-10-24T22:00:00Z",
                "2026-10-25T23:00:00Z",
            ),
            (
                "2026-10",
                "Europe/Berlin",
                "2026-09-30T22:00:00Z",
                "2026-10-31T23:00:00Z",
            ),
            (
                "today",
                "Asia/Kolkata",
                "2026-11-15T18:30:00Z",
                "2026-11-16T18:30:00Z",
            ),
            (
                "yesterday",
                "America/New_York",
                "2026-11-15T05:00:00Z",
                "2026-11-16T05:00:00Z",
            ),
            (
                "2026-11-01T13:00",
                "Europe/Berlin",
                "2026-11-01T12:00:00Z",
                "2026-11-01T12:00:00Z",
            ),
            (
                "2026-11-01T13:00Z",
                "Europe/Berlin",
                "2026-11-01T13:00:00Z",
                "2026-11-01T13:00:00Z",
            ),
            (
                "24h",
                "Europe/Berlin",
                "2026-11-15T05:30:00Z",
                "2026-11-15T05:30:00Z",
            ),
        ] {
            let expected = Ok((start.to_owned(), end.to_owned()));
            assert_eq!(resolve(text, zone), expected, "{text} in {zone}");
        }
    }

    #[test]
    fn invalid_time_is_rejected_with_the_allowed_forms() {
        for text in [
            "",
            "7",
            "1w",
            "-7d",
            "2026",
            "2026-13",
            "2026-02-30",
            "11/01/2026",
            "99999d",
        ] {
            let error = When::parse(text).unwrap_err();
            assert!(error.contains("allowed: 24h, 7d, today"), "{text}: {error}");
        }
    }

    #[test]
    fn midnight_is_shown_as_the_date() {
        let words = |text: &str, zone: &str| {
            let time = text.parse::<Timestamp>().unwrap();
            in_words(time.into(), &Zone::parse(zone).unwrap())
        };
        assert_eq!(words("2026-11-16T00:00:00Z", "UTC"), "2026-11-16");
        assert_eq!(words("2026-11-16T05:00:00Z", "UTC"), "2026-11-16 05:00");
        assert_eq!(words("2026-11-15T23:00:00Z", "Europe/Berlin"), "2026-11-16");
    }
}
