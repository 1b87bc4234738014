//! Numbers and times as short texts.

use jiff::Timestamp;

/// Returns a count with at most five characters: `1234`, `56.7k`, `12.3M`.
pub(super) fn count(count: u64) -> String {
    let units = [(1_000_000_000, "G"), (1_000_000, "M"), (1_000, "k")];
    if count < 10_000 {
        return count.to_string();
    }
    for (unit, name) in units {
        if count >= unit {
            let (whole, tenth) = (count / unit, count % unit * 10 / unit);
            return if whole < 100 {
                format!("{whole}.{tenth}{name}")
            } else {
                format!("{whole}{name}")
            };
        }
    }
    count.to_string()
}

/// Returns a rate, with a decimal below 100.
pub(super) fn rate(rate: f64) -> String {
    if rate < 100.0 {
        format!("{rate:.1}")
    } else {
        format!("{rate:.0}")
    }
}

/// Returns a time in milliseconds or seconds.
pub(super) fn milliseconds(ms: f64) -> String {
    if ms < 1000.0 {
        format!("{ms:.0} ms")
    } else if ms < 100_000.0 {
        format!("{:.1} s", ms / 1000.0)
    } else {
        format!("{:.0} s", ms / 1000.0)
    }
}

/// Returns a span of time in its two largest units.
pub(super) fn seconds(seconds: u64) -> String {
    let (minutes, hours, days) = (seconds / 60, seconds / 3600, seconds / 86_400);
    if days > 0 {
        format!("{days}d{}h", hours % 24)
    } else if hours > 0 {
        format!("{hours}h{}m", minutes % 60)
    } else if minutes > 0 {
        format!("{minutes}m{}s", seconds % 60)
    } else {
        format!("{seconds}s")
    }
}

/// Returns the time between two times of a snapshot, such as `12s ago`.
pub(super) fn ago(at: &str, now: &str) -> String {
    let parse = |time: &str| time.parse::<Timestamp>().ok();
    let passed = parse(at)
        .zip(parse(now))
        .map(|(at, now)| now.duration_since(at));
    let passed = passed.and_then(|passed| u64::try_from(passed.as_secs()).ok());
    passed.map_or_else(
        || at.to_owned(),
        |passed| format!("{} ago", seconds(passed)),
    )
}

/// Returns the time of day, in UTC, of a time of a snapshot.
pub(super) fn clock(at: &str) -> String {
    at.get(11..19).unwrap_or(at).to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_short() {
        for (given, shown) in [
            (0, "0"),
            (9_999, "9999"),
            (10_000, "10.0k"),
            (123_456, "123k"),
            (1_234_567, "1.2M"),
            (999_999_999, "999M"),
            (5_000_000_000, "5.0G"),
        ] {
            assert_eq!(count(given), shown);
        }
        assert_eq!((rate(3.2), rate(1234.5)), ("3.2".into(), "1234".into()));
        assert_eq!(milliseconds(12.3), "12 ms");
        assert_eq!(milliseconds(12_345.0), "12.3 s");
        assert_eq!(seconds(59), "59s");
        assert_eq!(seconds(3_700), "1h1m");
        assert_eq!(seconds(200_000), "2d7h");
        assert_eq!(
            ago("2026-11-19T19:54:00Z", "2026-11-19T19:55:05.5Z"),
            "1m5s ago"
        );
        assert_eq!(ago("x", "y"), "x");
        assert_eq!(clock("2026-11-19T19:54:00.123Z"), "19:54:00");
        assert_eq!(clock("ä"), "ä");
    }
}
