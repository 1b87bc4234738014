//! A span of time in whole hours.

use std::time::SystemTime;

use crate::time::{HOUR, Moment};

/// A span of whole hours. Without a start or an end it is unbounded on that side.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct HourSpan {
    pub(super) from: Option<Moment>,
    /// End of the span, which is not part of it.
    pub(super) until: Option<Moment>,
    /// True if the sums of each hour are reported, not those of whole days.
    pub(super) by_hour: bool,
}

impl HourSpan {
    /// Returns the hours that contain any of the requested time.
    pub(super) fn new(from: Option<SystemTime>, until: Option<SystemTime>) -> Self {
        let until = until.map(|time| {
            let (time, start) = (Moment::from(time), Moment::from(time).floor(HOUR));
            if start == time {
                time
            } else {
                start.after(HOUR)
            }
        });
        Self {
            from: from.map(|time| Moment::from(time).floor(HOUR)),
            until,
            by_hour: false,
        }
    }

    pub(super) fn by_hour(self) -> Self {
        Self {
            by_hour: true,
            ..self
        }
    }

    /// True if the sums of this day can be read from the file of the day: all of its hours are in
    /// the span, and sums by hour are not requested.
    pub(super) fn is_by_day(&self, day: &str) -> bool {
        !self.by_hour && self.has_all_of(day)
    }

    /// True if an hour, such as `2026-11-16T13`, is part of the span.
    pub(super) fn has_hour(&self, hour: &str) -> bool {
        let starts = self.from.is_none_or(|from| hour >= from.hour().as_str());
        starts && self.until.is_none_or(|until| hour < until.hour().as_str())
    }

    /// True if any hour of a day, such as `2026-11-16`, is part of the span.
    pub(super) fn has_some_of(&self, day: &str) -> bool {
        let starts = (self.from).is_none_or(|from| format!("{day}T23") >= from.hour());
        starts && (self.until).is_none_or(|until| format!("{day}T00") < until.hour())
    }

    /// True if every hour of a day is part of the span.
    fn has_all_of(&self, day: &str) -> bool {
        self.has_hour(&format!("{day}T00")) && self.has_hour(&format!("{day}T23"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn time(text: &str) -> Option<SystemTime> {
        Some(text.parse::<jiff::Timestamp>().unwrap().into())
    }

    #[test]
    fn span_has_every_hour_that_contains_requested_time() {
        let span = HourSpan::new(
            time("2026-11-15T13:37:00Z"),
            time("2026-11-16T05:00:00.001Z"),
        );
        assert_eq!(span.from.unwrap().to_string(), "2026-11-15T13:00:00Z");
        assert_eq!(span.until.unwrap().to_string(), "2026-11-16T06:00:00Z");
        for (hour, is_in) in [
            ("2026-11-15T12", false),
            ("2026-11-15T13", true),
            ("2026-11-16T05", true),
            ("2026-11-16T06", false),
        ] {
            assert_eq!(span.has_hour(hour), is_in, "{hour}");
        }
        for (day, some, all) in [
            ("2026-11-14", false, false),
            ("2026-11-15", true, false),
            ("2026-11-16", true, false),
            ("2026-11-17", false, false),
        ] {
            assert_eq!(
                (span.has_some_of(day), span.has_all_of(day)),
                (some, all),
                "{day}"
            );
        }
        let day = HourSpan::new(time("2026-11-15T00:00:00Z"), time("2026-11-16T00:00:00Z"));
        assert!(day.has_all_of("2026-11-15"));
        assert!(!day.has_some_of("2026-11-14") && !day.has_some_of("2026-11-16"));
        assert!(HourSpan::default().has_all_of("2026-11-15"));
    }
}
