//! Times as they are written down: RFC 3339, UTC, to the millisecond.

use std::time::{Duration, SystemTime};

use jiff::Timestamp;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use uuid::Uuid;

pub(crate) const HOUR: Duration = Duration::from_secs(3600);
pub(crate) const DAY: Duration = Duration::from_secs(24 * 3600);

/// A moment, to the millisecond. Wall clocks jump: nothing is decided by one alone.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Moment(i64);

impl Moment {
    /// When an id was made, if it can be written down.
    pub(crate) fn from_id(id: Uuid) -> Self {
        let time = id.get_timestamp().map(|time| time.to_unix());
        let (seconds, nanos) = time.unwrap_or_default();
        let time = i64::try_from(seconds)
            .ok()
            .and_then(|seconds| Timestamp::from_second(seconds).ok());
        let millis = time.unwrap_or_default().as_millisecond();
        Self(millis + i64::from(nanos / 1_000_000))
    }

    /// How long it is since another one; none if the clock went back.
    pub(crate) fn since(self, earlier: Self) -> Duration {
        let millis = self.0.saturating_sub(earlier.0);
        Duration::from_millis(u64::try_from(millis).unwrap_or_default())
    }

    /// The last multiple of such a length, counted from 1970.
    pub(crate) fn floor(self, length: Duration) -> Self {
        let millis = i64::try_from(length.as_millis()).unwrap_or(i64::MAX).max(1);
        Self(self.0 - self.0.rem_euclid(millis))
    }

    /// Its hour, in UTC: `2026-11-16T13`.
    pub(crate) fn hour(self) -> String {
        let mut text = self.to_string();
        text.truncate(13);
        text
    }

    /// Its day, in UTC: `2026-11-16`.
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

/// A new id: later ones sort after earlier ones. A clock that is before 1970 is no reason to fail.
pub(crate) fn new_id() -> Uuid {
    if SystemTime::now() < SystemTime::UNIX_EPOCH {
        return Uuid::new_v7(uuid::Timestamp::from_unix(uuid::NoContext, 0, 0));
    }
    Uuid::now_v7()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_moment_is_read_as_it_is_written() {
        let moment = Moment(1_763_251_200_123);
        let text = serde_json::to_string(&moment).unwrap();
        assert_eq!(text, r#""2025-11-16T00:00:00.123Z""#);
        assert_eq!(serde_json::from_str::<Moment>(&text).unwrap(), moment);
        assert_eq!(Moment::from(SystemTime::from(moment)), moment);
    }

    #[test]
    fn an_id_says_its_hour() {
        let id = Uuid::try_parse("01890a5d-ac96-774b-bcce-b302099a8057").unwrap();
        assert_eq!(Moment::from_id(id).hour(), "2023-06-30T03");
        // The last that can be written; years have four digits.
        let last = Uuid::try_parse("ffffffff-ffff-7fff-bfff-ffffffffffff").unwrap();
        assert_eq!(Moment::from_id(last).hour().len(), 13);
    }
}
