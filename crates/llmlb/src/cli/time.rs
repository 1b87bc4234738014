//! Formats of times and durations on the command line.

use std::time::{Duration, SystemTime};

/// Formats a time in UTC, to the second.
pub(super) fn point(time: SystemTime) -> String {
    jiff::Timestamp::try_from(time)
        .and_then(|time| jiff::Timestamp::from_second(time.as_second()))
        .map_or_else(|_| "?".to_owned(), |time| time.to_string())
}

/// Formats a duration in one unit, such as `90 s`, `15 min` or `2 days`.
pub(super) fn span(span: Duration) -> String {
    let seconds = span.as_secs();
    match seconds {
        0..=119 => format!("{seconds} s"),
        120..=7_199 => format!("{} min", seconds / 60),
        7_200..=172_799 => format!("{} h", seconds / 3_600),
        _ => format!("{} days", seconds / 86_400),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_and_durations_are_rounded() {
        let noon = SystemTime::UNIX_EPOCH + Duration::from_millis(1_769_774_400_250);
        assert_eq!(point(noon), "2026-01-30T12:00:00Z");
        for (seconds, text) in [
            (0, "0 s"),
            (119, "119 s"),
            (120, "2 min"),
            (7_200, "2 h"),
            (172_800, "2 days"),
        ] {
            assert_eq!(span(Duration::from_secs(seconds)), text);
        }
    }
}
