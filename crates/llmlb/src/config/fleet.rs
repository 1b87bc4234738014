//! The URL of the lease store that a fleet shares. The URL may contain a password, which is never
//! shown.

use super::secret::Secret;
use super::types::ValueType;
use super::values::RawSetting;
use crate::text;
use serde_json::{Value, json};

/// Cargo features of the lease stores, with true for those that this build contains. Always true in
/// tests of this crate, so that they can parse the URLs of all stores.
const REDIS: (&str, bool) = ("redis", cfg!(any(test, feature = "redis")));
const DYNAMODB: (&str, bool) = ("dynamodb", cfg!(any(test, feature = "dynamodb")));
const ETCD: (&str, bool) = ("etcd", cfg!(any(test, feature = "etcd")));

/// URL schemes of lease stores, with the cargo feature that each needs.
const SCHEMES: [(&str, (&str, bool)); 6] = [
    ("redis", REDIS),
    ("rediss", REDIS),
    ("redis+unix", REDIS),
    ("dynamodb", DYNAMODB),
    ("etcd", ETCD),
    ("etcds", ETCD),
];

/// Maximum number of characters of a store's URL in a message.
const MAX_SHOWN: usize = 200;

/// URL of a lease store. It may contain a password, which is never shown.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct FleetStore {
    url: Secret,
    shown: String,
}

impl FleetStore {
    /// Returns the complete URL of the lease store, which may contain a password. Messages must use
    /// [`Self::shown`].
    pub(crate) fn url(&self) -> &str {
        self.url.expose()
    }

    /// Returns the URL of the lease store without user, password and options, for messages and
    /// `/status`.
    pub(crate) fn shown(&self) -> &str {
        &self.shown
    }

    /// True if the lease store is Redis, in which servers also share limits of keys and the
    /// backends of issued ids.
    #[cfg(feature = "redis")]
    pub(crate) fn is_redis(&self) -> bool {
        self.shown.starts_with("redis")
    }
}

/// Type of the setting `fleet.store`. Parsing checks the URL only; the store is contacted by the
/// first run.
pub(super) struct FleetStoreUrl;

impl ValueType<FleetStore> for FleetStoreUrl {
    /// Parses the URL of a lease store. The error never repeats the URL, which may contain a
    /// password.
    fn parse(&self, raw: RawSetting<'_>) -> Result<FleetStore, String> {
        let text = match raw {
            RawSetting::Text(text) => Some(text),
            RawSetting::Toml(value) => value.as_str(),
        };
        let (scheme, rest) = text
            .and_then(|text| text.split_once("://"))
            .ok_or("this is not a URL")?;
        let known = SCHEMES.iter().find(|(known, ..)| *known == scheme);
        let (_, (feature, is_built)) = known.ok_or("the scheme of the URL names no lease store")?;
        if !is_built {
            return Err(format!(
                "this build of llmlb has no support for {scheme}://; build it with `cargo build \
                 --release -p llmlb --features {feature}`, or use the program that \
                 `scripts/build-release` builds"
            ));
        }
        if rest.is_empty() || rest.contains(|letter: char| letter.is_whitespace()) {
            return Err("the URL names no host or table, or contains a space".to_owned());
        }
        // Remove all text up to the last `@`: a password may contain `/`, `?` and `@` itself, and
        // must not be shown.
        let shown = rest.rsplit('@').next().unwrap_or_default();
        let shown = format!("{scheme}://{}", shown.split('?').next().unwrap_or_default());
        Ok(FleetStore {
            url: Secret::new(format!("{scheme}://{rest}")),
            shown: text::escaped(&text::shortened(&shown, MAX_SHOWN)).into_owned(),
        })
    }

    fn format(&self, value: &FleetStore) -> String {
        value.shown().to_owned()
    }

    fn allowed(&self) -> String {
        "redis://[:PASSWORD@]HOST[:PORT], rediss://.., etcd://HOST:PORT/PREFIX or \
         dynamodb://TABLE?region=.."
            .to_owned()
    }

    fn schema(&self) -> Value {
        json!({ "type": "string", "pattern": "^[a-z]+://" })
    }
}
