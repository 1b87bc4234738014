//! Time zone of `--tz`, which decides the days and hours of the report and of the export.

use jiff::tz::{Offset, TimeZone, db};
use jiff::{Timestamp, civil};

/// A time zone by its name in the IANA database, such as `Europe/Berlin`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::cli::usage) struct Zone {
    zone: TimeZone,
}

impl Default for Zone {
    fn default() -> Self {
        let zone = TimeZone::UTC;
        Self { zone }
    }
}

impl Zone {
    pub(in crate::cli::usage) fn parse(text: &str) -> Result<Self, String> {
        if text.eq_ignore_ascii_case("utc") || text.eq_ignore_ascii_case("z") {
            return Ok(Self::default());
        }
        let found = db().get(text).ok().filter(|_| !text.is_empty());
        found.map(|zone| Self { zone }).ok_or_else(|| {
            let near =
                near(text).map_or_else(String::new, |near| format!(" (did you mean {near}?)"));
            format!("not a time zone{near}; allowed: UTC, or a name such as Europe/Berlin")
        })
    }

    pub(super) fn is_utc(&self) -> bool {
        self.zone == TimeZone::UTC
    }

    pub(in crate::cli::usage) fn name(&self) -> &str {
        self.zone.iana_name().unwrap_or("UTC")
    }

    /// Returns the point in time at which a day begins in the zone.
    pub(super) fn start_of(&self, day: civil::Date) -> Option<Timestamp> {
        let start = day.to_zoned(self.zone.clone()).ok()?;
        Some(start.start_of_day().ok()?.timestamp())
    }

    /// Returns the point in time at which a clock in the zone shows this date and time. At the end
    /// of summer time there are two such points: the first is returned.
    pub(super) fn moment(&self, time: civil::DateTime) -> Option<Timestamp> {
        Some(time.to_zoned(self.zone.clone()).ok()?.timestamp())
    }

    /// Returns the date and time that a clock in the zone shows at this point in time.
    pub(super) fn local(&self, time: Timestamp) -> civil::DateTime {
        self.offset(time).to_datetime(time)
    }

    /// Returns the day in the zone to which a time belongs, such as `2026-11-16`.
    pub(super) fn day(&self, time: Timestamp) -> String {
        self.local(time).date().to_string()
    }

    /// Returns the hour in the zone to which a time belongs, with the offset from UTC, such as
    /// `2026-11-16T13:00+01:00`. The offset distinguishes the two equal hours at the end of summer
    /// time. Hours in UTC end with `Z`.
    pub(super) fn hour(&self, time: Timestamp) -> String {
        let local = self.local(time);
        let offset = self.offset(time).seconds();
        let (sign, minutes) = (
            if offset < 0 { '-' } else { '+' },
            offset.unsigned_abs() / 60,
        );
        let offset = if self.is_utc() {
            "Z".to_owned()
        } else {
            format!("{sign}{:02}:{:02}", minutes / 60, minutes % 60)
        };
        format!("{}T{:02}:00{offset}", local.date(), local.hour())
    }

    /// Formats a time in the zone, to the millisecond, with its offset from UTC.
    pub(in crate::cli::usage) fn exact(&self, time: Timestamp) -> String {
        if self.is_utc() {
            return format!("{time:.3}");
        }
        format!("{:.3}", time.display_with_offset(self.offset(time)))
    }

    /// True if an hour of the zone's clock is also an hour in UTC at this time. Where the offset
    /// has a part of an hour, as in India, totals by hour cannot be used.
    pub(super) fn has_whole_hours(&self, time: Timestamp) -> bool {
        self.offset(time).seconds() % 3600 == 0
    }

    fn offset(&self, time: Timestamp) -> Offset {
        self.zone.to_offset(time)
    }
}

/// Returns the name of a zone that ends with the word, such as `Europe/Berlin` for `berlin`, as a
/// suggestion.
fn near(word: &str) -> Option<String> {
    let is_near = |name: &str| {
        let last = name.rsplit('/').next().unwrap_or(name);
        last.eq_ignore_ascii_case(&word.replace(' ', "_"))
    };
    db().available()
        .map(|name| name.as_str().to_owned())
        .find(|name| is_near(name))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn time(text: &str) -> Timestamp {
        text.parse().unwrap()
    }

    #[test]
    fn hours_at_the_end_of_summer_time_differ() {
        let berlin = Zone::parse("Europe/Berlin").unwrap();
        // On 2026-10-25 in Berlin, clocks go from 03:00 back to 02:00.
        assert_eq!(
            berlin.hour(time("2026-10-25T00:10:00Z")),
            "2026-10-25T02:00+02:00"
        );
        assert_eq!(
            berlin.hour(time("2026-10-25T01:10:00Z")),
            "2026-10-25T02:00+01:00"
        );
        assert_eq!(berlin.day(time("2026-10-24T22:00:00Z")), "2026-10-25");
        assert_eq!(
            Zone::default().hour(time("2026-10-25T01:10:00Z")),
            "2026-10-25T01:00Z"
        );
        let kolkata = Zone::parse("Asia/Kolkata").unwrap();
        assert!(!kolkata.has_whole_hours(time("2026-10-25T01:10:00Z")));
        assert!(berlin.has_whole_hours(time("2026-10-25T01:10:00Z")));
        assert_eq!(
            kolkata.exact(time("2026-10-25T01:10:00Z")),
            "2026-10-25T06:40:00.000+05:30"
        );
        assert_eq!(
            Zone::default().exact(time("2026-10-25T01:10:00Z")),
            "2026-10-25T01:10:00.000Z"
        );
    }

    #[test]
    fn unknown_zone_is_rejected_with_a_suggestion() {
        let error = Zone::parse("berlin").unwrap_err();
        assert!(error.contains("did you mean Europe/Berlin?"), "{error}");
        for text in ["", "Mars/Olympus", "../../etc/passwd", "+01:00"] {
            let error = Zone::parse(text).unwrap_err();
            assert!(error.contains("allowed: UTC"), "{text}: {error}");
        }
        assert_eq!(
            Zone::parse("europe/berlin").unwrap().name(),
            "Europe/Berlin"
        );
        assert!(Zone::parse("utc").unwrap().is_utc());
    }
}
