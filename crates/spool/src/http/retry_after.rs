//! `Retry-After`: a number of seconds, or a date.

use std::time::{Duration, SystemTime};

/// Maximum wait that is read from `Retry-After`. Larger values could overflow when they are added
/// to a time.
const MAX_WAIT: Duration = Duration::from_secs(365 * 24 * 60 * 60);

/// Returns the wait from `now` on. Dates in the past give zero. Text that is neither a number nor a
/// date gives `None`.
pub(super) fn parse(text: &str, now: SystemTime) -> Option<Duration> {
    let text = text.trim();
    let digits = text.strip_prefix('-').unwrap_or(text);
    if !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit()) {
        if digits.len() < text.len() {
            return Some(Duration::ZERO);
        }
        // A number that overflows exceeds the maximum wait.
        let seconds = digits.parse().unwrap_or(u64::MAX);
        return Some(Duration::from_secs(seconds).min(MAX_WAIT));
    }
    let date = httpdate::parse_http_date(text).ok()?;
    let wait = date.duration_since(now).unwrap_or_default();
    Some(wait.min(MAX_WAIT))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(text: &str) -> Option<u64> {
        // Sun, 06 Nov 1994 08:49:37 GMT
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(784_111_777);
        parse(text, now).map(|wait| wait.as_secs())
    }

    #[test]
    fn seconds_and_all_date_formats_are_parsed() {
        assert_eq!(at("120"), Some(120));
        assert_eq!(at(" 0 "), Some(0));
        assert_eq!(at("Sun, 06 Nov 1994 08:50:37 GMT"), Some(60));
        assert_eq!(at("Sunday, 06-Nov-94 08:50:37 GMT"), Some(60));
        assert_eq!(at("Sun Nov  6 08:50:37 1994"), Some(60));
    }

    #[test]
    fn time_in_the_past_is_no_wait() {
        assert_eq!(at("-5"), Some(0));
        assert_eq!(at("Sun, 06 Nov 1994 08:49:36 GMT"), Some(0));
        assert_eq!(at("Thu, 01 Jan 1970 00:00:00 GMT"), Some(0));
    }

    #[test]
    fn invalid_value_is_ignored() {
        for text in [
            "",
            "-",
            "soon",
            "1.5",
            "1e3",
            "+5",
            "12 s",
            "Sun, 99 Nov 1994",
        ] {
            assert_eq!(at(text), None, "{text:?}");
        }
    }

    #[test]
    fn wait_is_limited_to_a_year() {
        let year = Some(MAX_WAIT.as_secs());
        assert_eq!(at("99999999999999999999999"), year);
        assert_eq!(at(&u64::MAX.to_string()), year);
        assert_eq!(at("Fri, 31 Dec 9999 23:59:59 GMT"), year);
    }
}
