//! Times in files: RFC 3339, UTC, to the millisecond.

use std::time::{Duration, SystemTime};

use jiff::Timestamp;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use uuid::Uuid;

pub(crate) const HOUR: Duration = Duration::from_secs(3600);
pub(crate) const DAY: Duration = Duration::from_secs(24 * 3600);

/// A wall-clock time in milliseconds since 1970. Wall clocks jump, so no decision may depend on
/// such a time alone.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Moment(i64);

impl Moment {
    /// Returns the time in a UUID of version 7; 1970 if the year has more than four digits.
    pub(crate) fn from_id(id: Uuid) -> Self {
        let time = id.get_timestamp().map(|time| time.to_unix());
        let (seconds, nanos) = time.unwrap_or_default();
        let time = i64::try_from(seconds)
            .ok()
            .and_then(|seconds| Timestamp::from_second(seconds).ok());
        let millis = time.unwrap_or_default().as_millisecond();
        Self(millis + i64::from(nanos / 1_000_000))
    }

    /// Returns the time that has passed since `earlier`; zero if the clock went back.
    pub(crate) fn since(self, earlier: Self) -> Duration {
        let millis = self.0.saturating_sub(earlier.0);
        Duration::from_millis(u64::try_from(millis).unwrap_or_default())
    }

    /// Rounds down to a multiple of `length`, counted from 1970.
    pub(crate) fn floor(self, length: Duration) -> Self {
        let millis = i64::try_from(length.as_millis()).unwrap_or(i64::MAX).max(1);
        Self(self.0 - self.0.rem_euclid(millis))
    }

    /// Returns the hour in UTC: `2026-11-16T13`.
    pub(crate) fn hour(self) -> String {
        let mut text = self.to_string();
        text.truncate(13);
        text
    }

    /// Returns the day in UTC: `2026-11-16`.
    pub(crate) fn day(self) -> String {
        let mut text = self.hour();
        text.truncate(10);
        text
    }

    pub(crate) fn before(self, long: Duration) -> Self {
        let millis = i64::try_from(long.as_millis()).unwrap_or(i64::MAX);
        Self(self.0.saturating_sub(millis).max(0))
    }

    pub(crate) fn after(self, long: Duration) -> Self {
        let millis = i64::try_from(long.as_millis()).unwrap_or(i64::MAX);
        Self(self.0.saturating_add(millis))
    }
}

impl From<SystemTime> for Moment {
    fn from(time: SystemTime) -> Self {
        let since = time.duration_since(SystemTime::UNIX_EPOCH);
        Self(i64::try_from(since.unwrap_or_default().as_millis()).unwrap_or_default())
    }
}

impl From<Moment> for SystemTime {
    fn from(moment: Moment) -> Self {
        let millis = Duration::from_millis(u64::try_from(moment.0).unwrap_or_default());
        Self::UNIX_EPOCH
            .checked_add(millis)
            .unwrap_or(Self::UNIX_EPOCH)
    }
}

impl std::fmt::Display for Moment {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        Timestamp::from_millisecond(self.0)
            .unwrap_or_default()
            .fmt(f)
    }
}

impl Serialize for Moment {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Moment {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        let time: Timestamp = text.parse().map_err(serde::de::Error::custom)?;
        Ok(Self(time.as_millisecond()))
    }
}

/// Returns a new id, which sorts after the ones that were made earlier.
pub(crate) fn new_id() -> Uuid {
    // Do not call `Uuid::now_v7`, which panics if the clock is set to a time before 1970.
    if SystemTime::now() < SystemTime::UNIX_EPOCH {
        return Uuid::new_v7(uuid::Timestamp::from_unix(uuid::NoContext, 0, 0));
    }
    Uuid::now_v7()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_is_read_as_it_was_written() {
        let moment = Moment(1_763_251_200_123);
        let text = serde_json::to_string(&moment).unwrap();
        assert_eq!(text, r#""2025-11-16T00:00:00.123Z""#);
        assert_eq!(serde_json::from_str::<Moment>(&text).unwrap(), moment);
        assert_eq!(Moment::from(SystemTime::from(moment)), moment);
    }

    #[test]
    fn hour_of_an_id_is_that_of_its_timestamp() {
        let id = Uuid::try_parse("01890a5d-ac96-774b-bcce-b302099a8057").unwrap();
        assert_eq!(Moment::from_id(id).hour(), "2023-06-30T03");
        // The largest timestamp is beyond the year 9999, the last that can be written.
        let last = Uuid::try_parse("ffffffff-ffff-7fff-bfff-ffffffffffff").unwrap();
        assert_eq!(Moment::from_id(last).hour().len(), 13);
    }
}
