//! Parser for `--since` and `--until`: `24h`, `7d`, `today`, `2026-11-01`. Days are in UTC, as in
//! the totals.

use std::time::{Duration, SystemTime};

use jiff::civil::Date;
use jiff::tz::TimeZone;
use jiff::{Timestamp, ToSpan};

use crate::config::span;

const YEARS: Duration = Duration::from_secs(10 * 366 * 24 * 3600);

/// Parsed value of `--since` or `--until`: a point in time, or a day or month.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::cli::usage) struct When {
    /// Start of the report if the value belongs to `--since`: the point in time, or the start of
    /// the day or month.
    pub(super) start: Timestamp,
    /// End of the report, exclusive, if the value belongs to `--until`: the point in time, or the
    /// end of the day or month.
    pub(super) end: Timestamp,
}

impl When {
    pub(in crate::cli::usage) fn parse(text: &str) -> Result<Self, String> {
        Self::parse_at(text, Timestamp::now())
    }

    fn parse_at(text: &str, now: Timestamp) -> Result<Self, String> {
        let today = now.to_zoned(TimeZone::UTC).date();
        let found = match text {
            "now" => Some(Self::moment(now)),
            "today" => Self::days(today, today.tomorrow().ok()),
            "yesterday" => today
                .yesterday()
                .ok()
                .and_then(|day| Self::days(day, Some(today))),
            _ => None,
        };
        found
            .or_else(|| Self::ago(text, now))
            .or_else(|| Self::day(text))
            .or_else(|| Self::month(text))
            .or_else(|| text.parse().ok().map(Self::moment))
            .ok_or_else(|| {
                format!(
                    "\"{}\" is not a time; allowed: 24h, 7d, today, yesterday, 2026-11-01, 2026-11, \
                     2026-11-01T13:00Z",
                    text.escape_debug()
                )
            })
    }

    fn moment(time: Timestamp) -> Self {
        Self {
            start: time,
            end: time,
        }
    }

    fn ago(text: &str, now: Timestamp) -> Option<Self> {
        let ago = span(text, &(Duration::ZERO..=YEARS)).ok()?;
        Some(Self::moment(now.checked_sub(ago).ok()?))
    }

    /// Parses a day such as `2026-11-01`.
    fn day(text: &str) -> Option<Self> {
        let day: Date = (text.len() == 10).then(|| text.parse().ok())??;
        Self::days(day, day.tomorrow().ok())
    }

    /// Parses a month such as `2026-11`.
    fn month(text: &str) -> Option<Self> {
        let first: Date = (text.len() == 7).then(|| format!("{text}-01").parse().ok())??;
        Self::days(first, first.checked_add(1.month()).ok())
    }

    fn days(first: Date, next: Option<Date>) -> Option<Self> {
        let start = |day: Date| Some(day.to_zoned(TimeZone::UTC).ok()?.timestamp());
        Some(Self {
            start: start(first)?,
            end: start(next?)?,
        })
    }
}

/// Formats a time to the minute; midnight as the date alone.
pub(super) fn in_words(time: SystemTime) -> String {
    let Ok(time) = Timestamp::try_from(time) else {
        return "?".to_owned();
    };
    let time = time.to_zoned(TimeZone::UTC).datetime();
    let (date, hour, minute) = (time.date(), time.hour(), time.minute());
    match (hour, minute) {
        (0, 0) => date.to_string(),
        _ => format!("{date} {hour:02}:{minute:02}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<(String, String), String> {
        let now = "2026-11-16T05:30:00Z".parse().unwrap();
        let when = When::parse_at(text, now)?;
        Ok((when.start.to_string(), when.end.to_string()))
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
            assert_eq!(
                parse(text),
                Ok((start.to_owned(), end.to_owned())),
                "{text}"
            );
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
            let error = parse(text).unwrap_err();
            assert!(error.contains("allowed: 24h, 7d, today"), "{text}: {error}");
        }
    }

    #[test]
    fn midnight_is_shown_as_the_date() {
        let words = |text: &str| in_words(text.parse::<Timestamp>().unwrap().into());
        assert_eq!(words("2026-11-16T00:00:00Z"), "2026-11-16");
        assert_eq!(words("2026-11-16T05:00:00Z"), "2026-11-16 05:00");
    }
}
