//! The lock record: data about the server in its lock file.

use std::net::SocketAddr;
use std::time::{Duration, SystemTime};

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tenure::Record;

/// Name of the field of the lock record with the version of llmlb.
pub(super) const VERSION: &str = "llmlb_version";
/// Name of the field of the lock record with the address that the server listens on.
pub(super) const ADDRESS: &str = "address";
/// Name of the field of the lock record with `server.drain_timeout`, in milliseconds.
pub(super) const DRAIN_TIMEOUT: &str = "drain_timeout_ms";
/// Name of the field of the lock record with the number of requests in flight while the server
/// drains.
pub(super) const DRAINING: &str = "draining";

/// Data about a server, from its lock record.
///
/// `pid`, `started_at` and `port` are always set. The other fields are `None` if the lock record
/// lacks them. Unknown fields of the lock record are ignored.
///
/// ```
/// use llmlb::lock::LockInfo;
///
/// let text = r#"{"pid":12345,"started_at":"2026-01-30T12:00:00Z","port":8000}"#;
/// let info: LockInfo = serde_json::from_str(text)?;
/// assert_eq!((info.pid, info.port, info.host.as_deref()), (12345, 8000, None));
/// assert_eq!(serde_json::to_string(&info)?, text);
/// # Ok::<(), serde_json::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct LockInfo {
    /// The server's process id, in its own PID namespace.
    pub pid: u32,
    /// Time at which the lock was acquired, to the millisecond. As text: RFC 3339, UTC.
    #[serde(with = "moment")]
    pub started_at: SystemTime,
    /// Port that the server listens on.
    pub port: u16,
    /// Host name of the server's machine.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host: Option<String>,
    /// User that the server runs as.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
    /// The server's program, without the path.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub program: Option<String>,
    /// Verb of the command line, for example `serve`. Never its arguments, which may be secret.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub verb: Option<String>,
    /// The version of llmlb. In the file: `llmlb_version`.
    #[serde(
        default,
        rename = "llmlb_version",
        skip_serializing_if = "Option::is_none"
    )]
    pub version: Option<String>,
    /// Address that the server listens on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub address: Option<SocketAddr>,
    /// Maximum duration of the server's drain after a signal (`server.drain_timeout`). In the file:
    /// `drain_timeout_ms`.
    #[serde(
        default,
        rename = "drain_timeout_ms",
        with = "millis_opt",
        skip_serializing_if = "Option::is_none"
    )]
    pub drain_timeout: Option<Duration>,
    /// Number of requests in flight while the server drains. `None` until it drains.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub draining: Option<u64>,
}

impl LockInfo {
    /// Reads the lock record of a port's server, or returns the reason why it is incomplete. A field
    /// with an invalid value counts as missing, as in tenure.
    pub(crate) fn from_record(record: &Record, port: u16) -> Result<Self, &'static str> {
        let Some(started_at) = record.started_at() else {
            return Err("the field `started_at` is missing or invalid");
        };
        let own = |text: Option<&str>| text.map(str::to_owned);
        let field = |name| record.field(name).and_then(Value::as_str);
        Ok(Self {
            pid: record.pid(),
            started_at: to_millis(started_at),
            port: record.port().unwrap_or(port),
            host: own(record.host()),
            user: own(record.user()),
            program: own(record.program()),
            verb: own(record.verb()),
            version: own(field(VERSION)),
            address: field(ADDRESS).and_then(|text| text.parse().ok()),
            drain_timeout: record
                .field(DRAIN_TIMEOUT)
                .and_then(Value::as_u64)
                .map(Duration::from_millis),
            draining: record.field(DRAINING).and_then(Value::as_u64),
        })
    }
}

/// Formats a time as in the lock record: RFC 3339, UTC, to the millisecond.
pub(crate) fn rfc3339(time: SystemTime) -> String {
    Timestamp::try_from(time)
        .and_then(|time| Timestamp::from_millisecond(time.as_millisecond()))
        .map_or_else(|_| "unknown".to_owned(), |time| time.to_string())
}

pub(super) fn millis(span: Duration) -> u64 {
    u64::try_from(span.as_millis()).unwrap_or(u64::MAX)
}

/// Rounds a time down to milliseconds, the resolution of the lock record. Otherwise a lock record
/// that is read back would differ from the one that was written.
fn to_millis(time: SystemTime) -> SystemTime {
    match time.duration_since(SystemTime::UNIX_EPOCH) {
        Ok(since) => SystemTime::UNIX_EPOCH + Duration::from_millis(millis(since)),
        Err(_) => time,
    }
}

mod moment {
    use serde::de::Error;
    use serde::{Deserializer, Serializer};

    use super::{Deserialize, SystemTime, Timestamp, rfc3339};

    pub(super) fn serialize<S: Serializer>(time: &SystemTime, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(&rfc3339(*time))
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<SystemTime, D::Error> {
        let text = String::deserialize(from)?;
        let time: Timestamp = text.parse().map_err(D::Error::custom)?;
        Ok(time.into())
    }
}

mod millis_opt {
    use serde::{Deserializer, Serialize, Serializer};

    use super::{Deserialize, Duration, millis};

    #[expect(clippy::ref_option, reason = "serde passes a reference to the field")]
    pub(super) fn serialize<S: Serializer>(
        span: &Option<Duration>,
        to: S,
    ) -> Result<S::Ok, S::Error> {
        span.map(millis).serialize(to)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(
        from: D,
    ) -> Result<Option<Duration>, D::Error> {
        Ok(Option::<u64>::deserialize(from)?.map(Duration::from_millis))
    }
}
